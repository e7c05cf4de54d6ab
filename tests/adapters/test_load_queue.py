from concurrent.futures import Future

from tensorrt_lora.adapters.load_queue import LoadQueue
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests

ONE, TWO = (LoRARequest(f"a{number}", number, f"/a{number}") for number in (1, 2))
MIX = WeightedLoRARequests(((ONE, 0.5), (TWO, 1.0)))


def _always(source: object) -> bool:
    return True


def test_requests_for_the_same_share_a_load_until_it_ends():
    queue = LoadQueue()
    load = queue.join(ONE)
    assert queue.join(ONE) is load and queue.join(TWO) is not load and queue.join(MIX) is not load
    assert queue.start_next(_always) is load
    assert queue.join(ONE) is load
    queue.end(load)
    assert queue.join(ONE) is not load


def test_loads_start_in_order_but_those_that_may_not():
    queue = LoadQueue()
    one, two = queue.join(ONE), queue.join(TWO)
    assert queue.start_next(lambda source: source != 1) is two
    assert queue.start_next(lambda source: source != 1) is None
    assert queue.start_next(_always) is one


def test_a_forgotten_load_is_joined_no_more_and_its_successor_follows_it():
    queue = LoadQueue()
    first, mix = queue.join(ONE), queue.join(MIX)
    assert queue.start_next(_always) is first
    assert queue.forget(1) == [first, mix] and first.forgotten
    second = queue.join(ONE)
    assert second is not first
    assert queue.start_next(_always) is mix
    assert queue.start_next(_always) is None
    queue.end(first)
    assert queue.join(ONE) is second and queue.start_next(_always) is second


def test_what_nobody_waits_for_is_not_wanted():
    load = LoadQueue().join(ONE)
    assert not load.is_wanted
    load.users.append(Future())
    assert load.is_wanted and load.num_users == 1
    load.users[0].cancel()
    assert not load.is_wanted
    load.loaders.append(Future())
    assert load.is_wanted
    users, loaders = load.take_waiters()
    assert (users, len(loaders), load.is_wanted) == ([], 1, False)


def test_what_has_not_started_is_given_up_together():
    queue = LoadQueue()
    one, two = queue.join(ONE), queue.join(TWO)
    assert queue.start_next(_always) is one
    assert queue.take_queued() == [two]
    queue.end(two)
    assert queue.start_next(_always) is None and list(queue.joinable) == [1]
