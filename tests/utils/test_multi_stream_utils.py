import threading

from tensorrt_lora.utils.multi_stream_utils import do_multi_stream, maybe_execute_in_parallel, with_multi_stream


def test_the_switch_nests_and_is_restored():
    assert not do_multi_stream()
    with with_multi_stream(True):
        assert do_multi_stream()
        with with_multi_stream(False):
            assert not do_multi_stream()
        assert do_multi_stream()
    assert not do_multi_stream()


def test_the_switch_is_restored_after_an_error():
    try:
        with with_multi_stream(True):
            raise KeyError
    except KeyError:
        pass
    assert not do_multi_stream()


def test_the_switch_belongs_to_its_thread():
    seen: list[bool] = []
    with with_multi_stream(True):
        thread = threading.Thread(target=lambda: seen.append(do_multi_stream()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_without_a_stream_the_base_runs_first_then_lora():
    order: list[str] = []
    with with_multi_stream(True):
        results = maybe_execute_in_parallel(
            lambda: order.append("base") or 1, lambda: order.append("lora") or 2, None, None, None
        )
    assert order == ["base", "lora"]
    assert results == (1, 2)
