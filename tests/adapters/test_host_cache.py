import random

import pytest
import torch

from tensorrt_lora.adapters.adapter_handle import COMBINED_ID, AdapterHandle
from tensorrt_lora.adapters.host_cache import HostCache
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.module_types import LoraModuleType

_UNIT = 4 * (8 + 8)


def _handle(adapter_id: int, *, version: str = "v1", units: int = 1) -> AdapterHandle:
    module = LoraModuleWeights(torch.ones(units, 8), torch.ones(units, 8), 1.0)
    weights = AdapterWeights(f"a{adapter_id}", version, {(0, LoraModuleType.ATTENTION_Q): module})
    return AdapterHandle(adapter_id, f"a{adapter_id}", weights)


def _combination(*parts: tuple[int, float], version: str = "v1") -> AdapterHandle:
    return AdapterHandle(COMBINED_ID, "mix", _handle(0, version=version).weights, parts)


def _resident(cache: HostCache) -> list[int]:
    return [handle.adapter_id for handle in cache.resident()]


def _cache(*adapter_ids: int, max_adapters: int | None = None, units: int = 100) -> HostCache:
    cache = HostCache(max_adapters=max_adapters, max_bytes=units * _UNIT)
    for adapter_id in adapter_ids:
        assert cache.admit(_handle(adapter_id))
    return cache


def test_the_count_binds_and_the_least_recently_used_gives_way():
    cache = _cache(1, 2, 3, max_adapters=3)
    cache.release(cache.take(1))
    assert cache.admit(_handle(4))
    assert _resident(cache) == [3, 1, 4]
    assert cache.num_evictions == 1


def test_the_bytes_bind_too():
    cache = _cache(1, 2, 3, max_adapters=10, units=3)
    assert cache.admit(_handle(4, units=2))
    assert _resident(cache) == [3, 4]
    assert cache.nbytes == 3 * _UNIT


def test_adapters_in_use_are_never_evicted():
    cache = _cache(1, 2, max_adapters=2)
    first = cache.take(1)
    assert cache.admit(_handle(3))
    assert _resident(cache) == [1, 3]
    second = cache.take(3)
    assert not cache.admit(_handle(4))
    assert _resident(cache) == [1, 3]
    cache.release(second)
    cache.release(first)


def test_a_newcomer_gets_in_although_everybody_stays_busy():
    """The adapter longest unused is given to nobody new, so its last user makes room."""
    cache = _cache(1, 2, max_adapters=2)
    one, two, again = cache.take(1), cache.take(2), cache.take(1)
    assert not cache.admit(_handle(3))
    assert cache.take(2) is None and not cache.has(2)
    assert cache.take(1) is one
    cache.release(one)
    assert not cache.admit(_handle(3))
    cache.release(two)
    assert cache.admit(_handle(3))
    assert _resident(cache) == [1, 3]
    assert cache.take(1) is again


def test_draining_stops_when_nobody_waits_any_more():
    cache = _cache(1, max_adapters=1)
    one = cache.take(1)
    assert not cache.admit(_handle(2))
    cache.stop_draining()
    assert cache.take(1) is one


def test_as_many_drain_as_the_newcomer_needs():
    cache = _cache(1, 2, 3, units=3)
    held = [cache.take(adapter_id) for adapter_id in (3, 1, 2)]
    assert not cache.admit(_handle(4, units=2))
    assert [cache.has(adapter_id) for adapter_id in (1, 2, 3)] == [False, True, False]
    cache.release(held[0])
    assert not cache.admit(_handle(4, units=2))
    cache.release(held[1])
    assert cache.admit(_handle(4, units=2))
    assert _resident(cache) == [2, 4]


def test_a_new_version_runs_beside_the_old_one():
    cache = _cache(1)
    old = cache.take(1)
    cache.forget(1)
    assert cache.take(1) is None
    assert cache.admit(_handle(1, version="v2"))
    new = cache.take(1)
    assert (old.version, new.version) == ("v1", "v2")
    assert cache.nbytes == 2 * _UNIT
    cache.release(old)
    assert (cache.nbytes, cache.num_adapters) == (_UNIT, 1)
    cache.release(new)


def test_the_same_content_keeps_its_handle():
    cache = _cache(1)
    old = cache.take(1)
    cache.forget(1)
    assert cache.admit(_handle(1))
    assert cache.take(1) is old
    assert cache.nbytes == _UNIT


def test_retired_adapters_count_until_they_are_released():
    cache = _cache(1, max_adapters=1)
    old = cache.take(1)
    cache.forget(1)
    assert not cache.admit(_handle(2))
    cache.release(old)
    assert cache.admit(_handle(2))


def test_forgetting_an_idle_adapter_frees_it():
    cache = _cache(1)
    cache.forget(1)
    cache.forget(1)
    assert (cache.nbytes, cache.num_adapters) == (0, 0)


def test_a_second_release_is_a_bug():
    cache = _cache(1)
    handle = cache.take(1)
    cache.release(handle)
    with pytest.raises(AssertionError, match="adapter 'a1' was released more often than acquired"):
        cache.release(handle)


def test_limits_hold_in_any_order_of_calls():
    draws = random.Random(0)
    cache = _cache(max_adapters=4, units=8)
    held: list[AdapterHandle] = []
    for step in range(3000):
        adapter_id = draws.randrange(8)
        if held and draws.random() < 0.5:
            cache.release(held.pop(draws.randrange(len(held))))
        elif draws.random() < 0.05:
            cache.forget(adapter_id)
        elif adapter_id not in _resident(cache):
            cache.admit(_handle(adapter_id, version=f"v{step}", units=draws.randint(1, 3)))
        elif (handle := cache.take(adapter_id)) is not None:
            held.append(handle)
        assert cache.nbytes <= 8 * _UNIT and cache.num_adapters <= 4
        in_use = {handle.key for handle in held}
        assert in_use <= {entry.handle.key for entry in cache.entries()}
    assert cache.num_evictions > 100


def test_a_combination_is_kept_beside_its_parts_and_under_the_same_limits():
    cache = _cache(1, 2, max_adapters=3)
    assert cache.admit(_combination((1, 0.5), (2, 1.0)))
    assert cache.has(((1, 0.5), (2, 1.0))) and not cache.has(((1, 0.5), (2, 1.5)))
    assert cache.peek(1) is not None and cache.peek(((2, 1.0), (1, 0.5))) is None
    assert cache.admit(_handle(3))
    assert _resident(cache) == [2, COMBINED_ID, 3]


def test_forgetting_an_adapter_forgets_what_it_is_part_of():
    cache = _cache(1, 2, 3)
    for parts in (((1, 0.5), (2, 1.0)), ((2, 1.0), (3, 1.0))):
        assert cache.admit(_combination(*parts, version=repr(parts)))
    held = cache.take(((1, 0.5), (2, 1.0)))
    cache.forget(1)
    assert [handle.source for handle in cache.resident()] == [2, 3, ((2, 1.0), (3, 1.0))]
    cache.release(held)
    assert cache.num_adapters == 3


def test_behind_one_that_waits_gets_in_only_what_does_not_delay_it():
    cache = _cache(1, 2, 3, units=5)
    held = [cache.take(adapter_id) for adapter_id in (1, 2, 3)]
    big = _handle(4, units=3)
    assert not cache.admit(big)
    assert [cache.has(adapter_id) for adapter_id in (1, 2, 3)] == [False, True, True]
    assert not cache.admit(_handle(5), [big])  # it would fit now, but then 2 would have to make room too
    cache.release(held[1])
    assert cache.admit(big)
    assert cache.has(1)
    cache = _cache(1, 2, 3, units=6)
    held = [cache.take(adapter_id) for adapter_id in (1, 2, 3)]
    big = _handle(4, units=4)
    assert not cache.admit(big)
    assert not cache.admit(_handle(5, units=2), [big])
    assert cache.admit(_handle(6), [big, _handle(5)]) is False
    cache.release(held[0])
    assert cache.admit(big)


def test_what_fits_beside_those_ahead_gets_in_and_they_go_on_waiting():
    cache = _cache(1, 2, 3, units=6)
    one, two = cache.take(1), cache.take(2)
    three = cache.take(3)
    big = _handle(4, units=4)
    assert not cache.admit(big)  # 1 has to go
    assert cache.admit(_handle(5), [_handle(6, units=2)])
    assert not cache.has(1)
    for handle in (one, two, three):
        cache.release(handle)


def test_pinned_adapters_neither_go_nor_drain():
    cache = _cache(1, 2, max_adapters=2)
    cache.pin(1, True)
    assert cache.admit(_handle(3))
    assert _resident(cache) == [1, 3]
    held = [cache.take(1), cache.take(3)]
    assert not cache.admit(_handle(4))
    assert (cache.has(1), cache.has(3)) == (True, False)
    cache.pin(3, True)
    assert cache.has(3)
    assert cache.lack_of_room(_handle(4)) == "2 pinned adapters take all of max_cpu_loras=2; unload one or raise it"
    cache.pin(1, False)
    assert cache.lack_of_room(_handle(4)) is None
    for handle in held:
        cache.release(handle)
    cache.forget(3)
    assert cache.admit(_handle(3)) and cache.admit(_handle(4)) and cache.admit(_handle(5))
    assert _resident(cache) == [4, 5]  # what was pinned under an id that was forgotten is not pinned any more


def test_what_is_gone_is_told_once():
    cache = _cache(1, 2, max_adapters=2)
    held = cache.take(2)
    assert cache.admit(_handle(3))
    cache.forget(2)
    assert cache.take_gone() == [_handle(1).key]
    cache.release(held)
    cache.forget(3)
    assert cache.admit(_handle(3))
    assert cache.take_gone() == [_handle(2).key]
    assert cache.take_gone() == []
