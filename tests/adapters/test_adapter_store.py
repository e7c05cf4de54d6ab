"""Loading in the background, limits, sharing and life cycle. Waits are bounded: a hang is a failure."""

import gc
import shutil
import threading
import time
import weakref
from concurrent.futures import Future
from contextlib import suppress

import pytest
import torch

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_handle import COMBINED_ID, AdapterHandle
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.adapters.adapter_store import AdapterStore
from tensorrt_lora.adapters.combined_adapter import AdapterCombiner
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tests.support.tiny_adapters import config_fields, random_tensors, write_adapter

_TIMEOUT = 30
_Q0 = (0, LoraModuleType.ATTENTION_Q)


class _Disk:
    """A reader that counts, and that can be told to wait, for all adapters or for one (`slow`)."""

    def __init__(self, reader: AdapterReader) -> None:
        self._reader = reader
        self.reads: list[str] = []
        self.started = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.slow: str | None = None

    def read(self, request: LoRARequest) -> AdapterWeights:
        self.reads.append(request.lora_name)
        self.started.set()
        if self.slow in (None, request.lora_name):
            assert self.go.wait(_TIMEOUT)
        return self._reader.read(request)


@pytest.fixture
def disk(sites):
    return _Disk(AdapterReader(sites, LoraConfig(), torch.float32))


@pytest.fixture
def requests(sites, tmp_path):
    """Adapters 0 to 3, of equal size and different content."""
    for index in range(4):
        tensors = random_tensors(sites, ("q_proj",), 4, seed=index + 1)
        write_adapter(tmp_path / f"a{index}", tensors, config_fields(4, ["q_proj"]))
    return [LoRARequest(f"a{index}", index, str(tmp_path / f"a{index}")) for index in range(4)]


@pytest.fixture
def make_store(disk):
    stores: list[AdapterStore] = []

    def make_store(max_adapters: int | None = None, max_bytes: int = 2**30, num_loaders: int = 4) -> AdapterStore:
        stores.append(
            AdapterStore(
                disk.read,
                max_adapters=max_adapters,
                max_bytes=max_bytes,
                combine=AdapterCombiner(max_rank=8).combine,
                num_loaders=num_loaders,
            )
        )
        return stores[-1]

    yield make_store
    disk.go.set()
    for store in stores:
        store.close()


def _get(waiter: Future[AdapterHandle]) -> AdapterHandle:
    return waiter.result(_TIMEOUT)


def _names(store: AdapterStore) -> list[str]:
    return [handle.name for handle in store.resident()]


def _load(store: AdapterStore, *requests: LoRARequest) -> None:
    for request in requests:
        store.release(_get(store.acquire(request)))


def test_an_adapter_is_read_once_and_shared(make_store, disk, requests):
    store = make_store()
    first = _get(store.acquire(requests[0]))
    second = store.acquire(requests[0])
    assert second.done() and second.result() is first
    assert (first.adapter_id, first.name, disk.reads) == (0, "a0", ["a0"])


def test_acquire_never_waits_for_the_disk(make_store, disk, requests):
    store = make_store()
    _load(store, requests[1])
    disk.started.clear()
    disk.go.clear()
    slow = store.acquire(requests[0])
    assert disk.started.wait(_TIMEOUT)
    assert store.acquire(requests[1]).done()
    assert not slow.done()
    disk.go.set()
    assert _get(slow).name == "a0"


def test_concurrent_requests_read_the_file_once(make_store, disk, requests):
    store = make_store()
    disk.go.clear()
    waiters: list[Future[AdapterHandle]] = []
    threads = [threading.Thread(target=lambda: waiters.append(store.acquire(requests[0]))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT)
    disk.go.set()
    handles = [_get(waiter) for waiter in waiters]
    assert len(handles) == 16 and len({id(handle) for handle in handles}) == 1
    assert disk.reads == ["a0"]
    for handle in handles:
        store.release(handle)
    with pytest.raises(AssertionError):
        store.release(handles[0])


def test_the_least_recently_used_is_evicted_and_read_again_on_demand(make_store, disk, requests):
    store = make_store(max_adapters=2)
    before = _get(store.acquire(requests[0]))
    store.release(before)
    _load(store, requests[1], requests[2])
    assert _names(store) == ["a1", "a2"]
    after = _get(store.acquire(requests[0]))
    assert disk.reads == ["a0", "a1", "a2", "a0"]
    assert after.key == before.key
    assert torch.equal(after.weights.modules[_Q0].a, before.weights.modules[_Q0].a)
    assert store.num_evictions == 2


def test_the_byte_limit_binds_without_a_count(make_store, requests):
    store = make_store()
    _load(store, requests[0])
    size = store.host_bytes
    small = make_store(max_bytes=2 * size)
    _load(small, *requests)
    assert _names(small) == ["a2", "a3"]
    assert small.host_bytes == 2 * size


def test_an_adapter_larger_than_the_limit_is_refused_with_the_field_to_raise(make_store, requests):
    store = make_store()
    _load(store, requests[0])
    size = store.host_bytes
    small = make_store(max_bytes=size - 1)
    with pytest.raises(AdapterError) as caught:
        _get(small.acquire(requests[0]))
    assert str(caught.value) == (
        f"adapter 'a0' ({requests[0].lora_path}): it takes {size} bytes of host memory, but "
        f"peft_cache_config.host_cache_size is {size - 1}; raise it to {size} or more"
    )
    assert small.host_bytes == 0


def test_a_request_waits_until_an_adapter_in_use_is_released(make_store, requests):
    store = make_store(max_adapters=2)
    one, two = _get(store.acquire(requests[0])), _get(store.acquire(requests[1]))
    waiter = store.acquire(requests[2])
    with pytest.raises(TimeoutError):
        waiter.result(0.2)
    assert _names(store) == ["a0", "a1"]
    store.release(two)
    store.release(one)
    assert _get(waiter).name == "a2"


def test_a_stream_of_requests_for_others_starves_nobody(make_store, disk, requests):
    store = make_store(max_adapters=1)
    held = _get(store.acquire(requests[0]))
    newcomer = store.acquire(requests[1])
    while len(disk.reads) < 2 or store.acquire(requests[0]).done():
        pass  # a0 is still given out until the loader asks for its room
    late = store.acquire(requests[0])
    assert not late.done()
    while _names(store) == ["a0"]:
        store.release(held)
    handle = _get(newcomer)
    assert not late.done()
    store.release(handle)
    assert _get(late).key == held.key


def test_a_missing_directory_fails_its_request_alone_and_is_not_remembered(make_store, disk, requests, tmp_path):
    store = make_store(max_adapters=1)
    running = _get(store.acquire(requests[1]))
    shutil.move(tmp_path / "a0", tmp_path / "away")
    with pytest.raises(AdapterError, match="the path does not exist") as caught:
        _get(store.acquire(requests[0]))
    assert str(caught.value).startswith(f"adapter 'a0' ({requests[0].lora_path}): ")
    assert _names(store) == ["a1"]
    store.release(running)
    shutil.move(tmp_path / "away", tmp_path / "a0")
    assert _get(store.acquire(requests[0])).name == "a0"


def test_a_directory_that_vanishes_after_eviction_fails_that_request_alone(make_store, requests, tmp_path):
    store = make_store(max_adapters=1)
    _load(store, requests[0], requests[1])
    shutil.rmtree(tmp_path / "a0")
    with pytest.raises(AdapterError, match="the path does not exist"):
        _get(store.acquire(requests[0]))
    _load(store, requests[1], requests[2])


def test_a_resident_adapter_outlives_its_directory(make_store, requests, tmp_path):
    store = make_store()
    _load(store, requests[0])
    shutil.rmtree(tmp_path / "a0")
    assert _get(store.acquire(requests[0])).name == "a0"


def _rewrite(request: LoRARequest, sites, directory) -> None:
    write_adapter(
        directory / request.lora_name,
        random_tensors(sites, ("q_proj",), 4, seed=99),
        config_fields(4, ["q_proj"]),
    )


def test_changed_files_are_a_new_version_after_eviction(make_store, requests, sites, tmp_path):
    store = make_store(max_adapters=1)
    old = _get(store.acquire(requests[0]))
    _rewrite(requests[0], sites, tmp_path)
    same = _get(store.acquire(requests[0]))
    assert same is old
    store.release(old)
    store.release(same)
    _load(store, requests[1])
    new = _get(store.acquire(requests[0]))
    assert new.adapter_id == old.adapter_id and new.version != old.version
    assert not torch.equal(new.weights.modules[_Q0].a, old.weights.modules[_Q0].a)


def test_forgetting_an_adapter_reads_it_anew_and_leaves_running_requests_alone(make_store, requests, sites, tmp_path):
    store = make_store()
    old = _get(store.acquire(requests[0]))
    copy = old.weights.modules[_Q0].a.clone()
    _rewrite(requests[0], sites, tmp_path)
    store.forget(0)
    new = _get(store.acquire(requests[0]))
    assert new.version != old.version
    assert torch.equal(old.weights.modules[_Q0].a, copy)
    store.release(old)
    store.release(new)
    assert _names(store) == ["a0"]


def test_forgetting_during_a_load_reads_again(make_store, disk, requests, sites, tmp_path):
    store = make_store()
    disk.go.clear()
    first = store.acquire(requests[0])
    assert disk.started.wait(_TIMEOUT)
    store.forget(0)
    second = store.acquire(requests[0])
    disk.go.set()
    assert _get(first).key == _get(second).key
    assert disk.reads == ["a0", "a0"]
    for waiter in (first, second):
        store.release(_get(waiter))


def test_an_id_with_another_meaning_is_refused(make_store, requests):
    store = make_store()
    _load(store, requests[0])
    with pytest.raises(ValueError, match="lora_int_id 0 already stands for adapter 'a0'"):
        _get(store.acquire(LoRARequest("a1", 0, requests[1].lora_path)))
    store.forget(0)
    _load(store, LoRARequest("a1", 0, requests[1].lora_path))


def test_an_id_whose_load_failed_is_free(make_store, requests, tmp_path):
    store = make_store()
    with pytest.raises(AdapterError):
        _get(store.acquire(LoRARequest("typo", 5, str(tmp_path / "typo"))))
    _load(store, LoRARequest("a1", 5, requests[1].lora_path))


def test_a_discarded_request_leaves_no_reference(make_store, disk, requests):
    store = make_store(max_adapters=1, num_loaders=1)
    disk.go.clear()
    queued = [store.acquire(requests[0]), store.acquire(requests[1])]
    store.discard(queued[1])
    disk.go.set()
    _get(queued[0])
    store.discard(queued[0])
    failed = store.acquire(LoRARequest("typo", 9, "/typo"))
    with pytest.raises(AdapterError):
        _get(failed)
    store.discard(failed)
    _load(store, requests[2])
    assert _names(store) == ["a2"]
    assert "a1" not in disk.reads


def test_giving_up_while_waiting_for_room_lets_the_next_one_pass(make_store, disk, requests):
    store = make_store(max_adapters=1)
    held = _get(store.acquire(requests[0]))
    blocked = store.acquire(requests[1])
    while len(disk.reads) < 2:
        pass
    store.discard(blocked)
    again = store.acquire(requests[0])
    assert _get(again) is held


def test_whatever_a_read_raises_reaches_those_who_wait(sites, requests):
    calls: list[int] = []

    def read(request: LoRARequest) -> AdapterWeights:
        calls.append(request.lora_int_id)
        if request.lora_int_id == 0:
            raise MemoryError("no memory")
        return AdapterReader(sites, LoraConfig(), torch.float32).read(request)

    store = AdapterStore(read, max_adapters=None, max_bytes=2**30)
    with pytest.raises(MemoryError):
        _get(store.acquire(requests[0]))
    assert _get(store.acquire(requests[1])).name == "a1"
    store.close()


def test_closing_ends_all_waits(disk, requests):
    store = AdapterStore(disk.read, max_adapters=1, max_bytes=2**30)
    _get(store.acquire(requests[0]))
    blocked, queued = store.acquire(requests[1]), store.acquire(requests[2])
    store.close()
    for waiter in (blocked, queued, store.acquire(requests[3])):
        with pytest.raises(RuntimeError, match="the adapter store is closed"):
            _get(waiter)


def test_closing_while_an_adapter_is_read_that_finds_no_room(disk, requests):
    reading, go_on = threading.Event(), threading.Event()

    def read(request: LoRARequest) -> AdapterWeights:
        if request is requests[1]:
            reading.set()
            assert go_on.wait(_TIMEOUT)
        return disk.read(request)

    store = AdapterStore(read, max_adapters=1, max_bytes=2**30)
    _get(store.acquire(requests[0]))
    waiter = store.acquire(requests[1])
    assert reading.wait(_TIMEOUT)
    closer = threading.Thread(target=store.close, daemon=True)
    closer.start()
    with pytest.raises(RuntimeError, match="the adapter store is closed"):
        while True:  # until the store is closed
            _get(store.acquire(requests[0]))
    go_on.set()
    with pytest.raises(RuntimeError, match="the adapter store is closed"):
        _get(waiter)
    closer.join(_TIMEOUT)
    assert not closer.is_alive()


def test_many_threads_and_little_room(make_store, requests):
    """Eight users of four adapters in room for two: everybody is served, with the right adapter."""
    store = make_store(max_adapters=2)
    wrong: list[str] = []

    def use(offset: int) -> None:
        for step in range(30):
            request = requests[(offset + step * 3) % 4]
            handle = _get(store.acquire(request))
            if handle.name != request.lora_name:
                wrong.append(handle.name)
            store.release(handle)

    threads = [threading.Thread(target=use, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert len(store.resident()) <= 2


def _mix(*parts: tuple[LoRARequest, float]) -> WeightedLoRARequests:
    return WeightedLoRARequests(parts)


def test_a_combination_is_made_once_and_shared(make_store, disk, requests):
    store = make_store()
    mix = _mix((requests[0], 0.5), (requests[1], -1.0))
    first = _get(store.acquire(mix))
    second = store.acquire(_mix((requests[0], 0.5), (requests[1], -1)))
    assert second.done() and second.result() is first
    assert first.weights.modules[_Q0].rank == 8 and disk.reads == ["a0", "a1"]
    other = _get(store.acquire(_mix((requests[0], 0.5), (requests[1], -1.5))))
    assert other.key != first.key


def test_a_combination_takes_parts_that_are_in_memory_from_there(make_store, disk, requests):
    store = make_store()
    part = _get(store.acquire(requests[0]))
    mix = _get(store.acquire(_mix((requests[0], 3.0), (requests[1], 1.0))))
    assert disk.reads == ["a0", "a1"] and _names(store) == ["a0", mix.name]
    a = part.weights.modules[_Q0]
    assert torch.equal(mix.weights.modules[_Q0].a[:4], a.a * (3.0 * a.scale))
    assert _get(store.acquire(requests[0])) is part


def test_a_combination_is_evicted_and_made_again_like_any_adapter(make_store, disk, requests):
    store = make_store(max_adapters=1)
    mix = _mix((requests[0], 0.5), (requests[1], 1.0))
    before = _get(store.acquire(mix))
    store.release(before)
    _load(store, requests[2])
    after = _get(store.acquire(mix))
    assert disk.reads == ["a0", "a1", "a2", "a0", "a1"] and after.key == before.key


def test_forgetting_a_part_makes_the_combination_anew(make_store, requests, sites, tmp_path):
    store = make_store()
    mix = _mix((requests[0], 0.5), (requests[1], 1.0))
    old = _get(store.acquire(mix))
    _rewrite(requests[0], sites, tmp_path)
    store.forget(0)
    new = _get(store.acquire(mix))
    assert new.key != old.key
    for handle in (old, new):
        store.release(handle)


def test_forgetting_a_part_during_the_load_makes_the_combination_again(make_store, disk, requests, sites, tmp_path):
    store = make_store()
    mix = _mix((requests[0], 0.5), (requests[1], 1.0))
    disk.go.clear()
    first = store.acquire(mix)
    assert disk.started.wait(_TIMEOUT)
    store.forget(1)
    second = store.acquire(mix)
    disk.go.set()
    assert _get(first).key == _get(second).key
    assert disk.reads == ["a0", "a1"] * 2


def test_a_combination_that_fails_leaves_the_ids_that_are_in_use(make_store, requests, tmp_path):
    store = make_store()
    held = _get(store.acquire(requests[0]))
    shutil.rmtree(tmp_path / "a1")
    with pytest.raises(AdapterError, match=r"adapter 'a1' \(.*the path does not exist"):
        _get(store.acquire(_mix((requests[0], 0.5), (requests[1], 1.0))))
    elsewhere = LoRARequest("new", 1, requests[2].lora_path)
    assert _get(store.acquire(elsewhere)).name == "new"
    with pytest.raises(ValueError, match="lora_int_id 0 already stands for"):
        _get(store.acquire(LoRARequest("new", 0, requests[2].lora_path)))
    store.release(held)


def test_the_size_of_a_combination_is_limited_too(make_store, requests):
    store = make_store()
    size = _get(store.acquire(requests[0])).host_bytes
    small = make_store(max_bytes=2 * size - 1)
    with pytest.raises(AdapterError, match=r"adapter '1 \* a0 \+ 1 \* a1' .*: it takes .*host_cache_size"):
        _get(small.acquire(_mix((requests[0], 1), (requests[1], 1))))


def test_without_a_current_directory_only_relative_paths_fail(make_store, requests, tmp_path, monkeypatch):
    store = make_store()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ValueError, match="give an absolute path"):
        store.acquire(LoRARequest("a9", 9, "a9")).result(_TIMEOUT)
    assert store.acquire(requests[0]).result(_TIMEOUT).name == "a0"


# Loads side by side


def _status(store: AdapterStore, adapter_id: int) -> AdapterStatus:
    return next(status for status in store.statuses() if status.lora_int_id == adapter_id)


def test_a_slow_load_holds_up_nobody(make_store, disk, requests):
    store = make_store()
    disk.slow = "a0"
    disk.go.clear()
    slow = store.acquire(requests[0])
    for request in requests[1:]:
        assert _get(store.acquire(request)).name == request.lora_name
    assert not slow.done()
    disk.go.set()
    assert _get(slow).name == "a0"


def test_no_more_adapters_are_read_at_once_than_there_are_loaders(make_store, disk, requests):
    store = make_store(num_loaders=2)
    disk.go.clear()
    waiters = [store.acquire(request) for request in requests]
    while len(disk.reads) < 2:
        time.sleep(0)
    assert disk.reads == ["a0", "a1"]
    disk.go.set()
    assert [_get(waiter).name for waiter in waiters] == ["a0", "a1", "a2", "a3"]


def test_a_load_that_waits_for_room_lets_by_what_fits_beside_it(make_store, requests, sites, tmp_path):
    big, small = (LoRARequest(name, number, str(tmp_path / name)) for name, number in (("big", 9), ("small", 8)))
    write_adapter(tmp_path / "big", random_tensors(sites, ("q_proj",), 8), config_fields(8, ["q_proj"]))
    write_adapter(tmp_path / "small", random_tensors(sites, ("k_proj",), 1), config_fields(1, ["k_proj"]))
    size = _get(make_store().acquire(requests[0])).host_bytes
    store = make_store(max_bytes=4 * size + size // 2)
    held = [_get(store.acquire(request)) for request in requests[:3]]
    waits = store.acquire(big)  # as large as two
    assert _get(store.acquire(small)).name == "small"
    assert not waits.done()
    store.release(held[0])
    assert _get(waits).name == "big"


def test_two_that_wait_for_the_same_room_both_get_it_in_turn(make_store, requests):
    store = make_store(max_adapters=1)
    held = _get(store.acquire(requests[0]))
    waiters = [store.acquire(request) for request in requests[1:]]
    store.release(held)
    served = []
    while waiters:
        [waiter] = [waiter for waiter in waiters if _is_next(waiter)][:1] or [None]
        if waiter is not None:
            waiters.remove(waiter)
            served.append(_get(waiter).name)
            store.release(_get(waiter))
    assert sorted(served) == ["a1", "a2", "a3"]


def _is_next(waiter: Future[AdapterHandle]) -> bool:
    time.sleep(0)
    return waiter.done()


# Loading for requests to come


def test_a_load_takes_no_reference(make_store, disk, requests):
    store = make_store(max_adapters=1)
    assert _get(store.load(requests[0])).name == "a0"
    assert _status(store, 0).users == 0
    assert _get(store.load(requests[0])) is _get(store.acquire(requests[0]))
    assert disk.reads == ["a0"]


def test_a_load_joins_a_request_that_waits(make_store, disk, requests):
    store = make_store()
    disk.go.clear()
    waiter, load = store.acquire(requests[0]), store.load(requests[0], pinned=True)
    assert (_status(store, 0).state, _status(store, 0).users, _status(store, 0).tier) == ("loading", 1, "disk")
    disk.go.set()
    assert _get(load) is _get(waiter)
    status = _status(store, 0)
    assert (status.state, status.users, status.pinned) == ("ready", 1, True)
    assert disk.reads == ["a0"]


def test_pinned_adapters_give_way_to_nobody(make_store, requests):
    store = make_store(max_adapters=2)
    _get(store.load(requests[0], pinned=True))
    _load(store, requests[1], requests[2], requests[3])
    assert _names(store) == ["a0", "a3"]
    busy = _get(store.acquire(requests[0]))
    waits = _get(store.acquire(requests[3]))
    blocked = store.acquire(requests[1])
    with pytest.raises(TimeoutError):
        blocked.result(0.2)
    assert store.acquire(requests[0]).done()  # it does not have to make room
    store.release(waits)
    assert _get(blocked).name == "a1"
    store.release(busy)


def test_what_pinned_adapters_leave_no_room_for_is_refused(make_store, requests):
    size = _get(make_store().acquire(requests[0])).host_bytes
    store = make_store(max_bytes=2 * size - 1)
    _get(store.load(requests[0], pinned=True))
    with pytest.raises(AdapterError) as caught:
        _get(store.load(requests[1], pinned=True))
    assert caught.value.kind == "does_not_fit"
    assert str(caught.value) == (
        f"adapter 'a1' ({requests[1].lora_path}): it takes {size} bytes of host memory, but pinned adapters leave "
        f"{size - 1} of peft_cache_config.host_cache_size={2 * size - 1}; unload one, or raise it to {2 * size} or more"
    )
    held = _get(store.acquire(requests[0]))
    store.load(requests[0])
    waits = store.acquire(requests[1])
    with pytest.raises(TimeoutError):
        waits.result(0.2)
    store.load(requests[0], pinned=True)
    with pytest.raises(AdapterError, match="pinned adapters leave"):  # also what waits already
        _get(waits)
    store.release(held)


# Unloading


def test_an_unloaded_id_is_refused_until_it_is_loaded(make_store, requests):
    store = make_store()
    _load(store, requests[0])
    store.unload(0)
    assert (store.statuses(), store.host_bytes) == ([], 0)
    with pytest.raises(AdapterError, match="lora_int_id 0 was unloaded; load it again to use it") as caught:
        _get(store.acquire(requests[0]))
    assert caught.value.kind == "unloaded"
    with pytest.raises(AdapterError, match="lora_int_id 0 was unloaded"):
        _get(store.acquire(_mix((requests[0], 0.5), (requests[1], 1.0))))
    with pytest.raises(ValueError, match="lora_int_id 0 stands for no adapter"):
        store.unload(0)
    other = LoRARequest("a1", 0, requests[1].lora_path)
    assert _get(store.load(other)).name == "a1"
    _load(store, other)


def test_the_last_user_of_an_unloaded_adapter_frees_it(make_store, requests):
    store = make_store()
    handle, again = _get(store.acquire(requests[0])), _get(store.acquire(requests[0]))
    weights = weakref.ref(handle.weights)
    assert store.take_gone() == []
    store.unload(0)
    assert [(one.lora_int_id, one.state, one.users) for one in store.statuses()] == [(0, "draining", 2)]
    store.release(handle)
    assert store.take_gone() == []
    store.release(again)
    assert (store.take_gone(), store.statuses(), store.host_bytes) == ([handle.key], [], 0)
    del handle, again
    gc.collect()
    assert weights() is None


def test_unloading_during_a_load_serves_requests_and_fails_the_load(make_store, disk, requests):
    store = make_store()
    disk.go.clear()
    load, waiter = store.load(requests[0]), store.acquire(requests[0])
    assert disk.started.wait(_TIMEOUT)
    store.unload(0)
    with pytest.raises(AdapterError, match="was unloaded while it was loading") as caught:
        _get(load)
    assert caught.value.kind == "unloaded"
    disk.go.set()
    handle = _get(waiter)
    assert [one.state for one in store.statuses()] == ["draining"]
    store.release(handle)
    assert (store.statuses(), store.host_bytes) == ([], 0)


def test_a_load_after_an_unload_reads_after_what_is_under_way(make_store, disk, requests, sites, tmp_path):
    """The older load, slower than anything, never replaces the newer one."""
    store = make_store()
    disk.go.clear()
    old = store.acquire(requests[0])
    assert disk.started.wait(_TIMEOUT)
    store.unload(0)
    new = store.load(requests[0])
    assert disk.reads == ["a0"]
    disk.go.set()
    assert _get(old) is _get(new)  # the same content
    assert disk.reads == ["a0", "a0"]
    assert [(one.state, one.users) for one in store.statuses()] == [("ready", 1)]


def test_statuses_follow_an_adapter(make_store, requests):
    store = make_store(max_adapters=1)
    before = time.time()
    _load(store, requests[0])
    status = _status(store, 0)
    assert (status.name, status.path, status.state, status.tier) == ("a0", requests[0].lora_path, "ready", "host")
    assert (status.rank, status.host_bytes, status.users, status.pinned) == (4, store.host_bytes, 0, False)
    assert before <= status.last_used <= time.time()
    _load(store, requests[1])
    evicted = _status(store, 0)
    assert (evicted.state, evicted.tier, evicted.version, evicted.rank) == ("evicted", "disk", None, None)
    assert (evicted.host_bytes, before <= evicted.last_used) == (0, True)
    assert len(store.take_gone()) == 1
    mix = _get(store.acquire(_mix((requests[0], 0.5), (requests[1], 1.0))))
    combined = store.statuses()[-1]
    assert (combined.lora_int_id, combined.name, combined.users) == (COMBINED_ID, mix.name, 1)


def test_an_idle_store_keeps_nothing_of_what_it_unloaded(make_store, requests):
    store = make_store()
    weights = []
    for request in requests:
        weights.append(weakref.ref(_get(store.load(request)).weights))
        store.unload(request.lora_int_id)
    gc.collect()
    assert [one() for one in weights] == [None] * 4


def test_loads_unloads_and_requests_from_many_threads(make_store, requests):
    store = make_store(max_adapters=3)
    wrong: list[str] = []

    def use(offset: int) -> None:
        for step in range(40):
            request = requests[(offset + step * 3) % 4]
            if step % 5 == offset % 5:
                with suppress(ValueError):  # another thread was first
                    store.unload(request.lora_int_id)
            with suppress(AdapterError):  # unloaded meanwhile
                _get(store.load(request, pinned=step % 11 == 0))
            waiter = store.acquire(request)
            if waiter.exception(_TIMEOUT) is None:
                if waiter.result().name != request.lora_name:
                    wrong.append(request.lora_name)
                store.release(waiter.result())

    threads = [threading.Thread(target=use, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    for status in store.statuses():
        store.unload(status.lora_int_id)
    assert (store.statuses(), store.host_bytes) == ([], 0)
