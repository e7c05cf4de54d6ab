import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrt_lora.engine.kv_cache_manager import KvCacheManager
from tests.support.kv_content import KvContent
from tests.support.llm_requests import FakeAdapter, append_token, make_request

PAGE = 4


def make_manager(num_pages=9, reuse=True):
    return KvCacheManager(num_pages, PAGE, reuse)


def run_whole(manager, request):
    """Allocate, compute and commit all tokens, as one prefill step does."""
    assert manager.allocate(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    manager.commit(request)
    return request


def run_and_free(manager, *args, **kwargs):
    request = run_whole(manager, make_request(*args, **kwargs))
    manager.free(request)
    return request


def counts(manager):
    stats = manager.stats()
    assert stats.free_pages + stats.cached_pages + stats.held_pages == stats.total_pages
    return stats.free_pages, stats.cached_pages, stats.held_pages


def test_pages_are_enough_distinct_and_never_page_zero():
    manager = make_manager(num_pages=9)
    first, second = make_request(9), make_request([7] * 16)
    assert manager.allocate(first, 9) and manager.allocate(second, 16)
    assert len(first.page_ids) == 3 and len(second.page_ids) == 4
    assert len({*first.page_ids, *second.page_ids} - {0}) == 7
    assert counts(manager) == (1, 0, 7)
    pages = list(first.page_ids)
    assert manager.allocate(first, 12) and first.page_ids == pages  # room left in the last page
    assert manager.allocate(first, 13) and first.page_ids[:3] == pages
    manager.check_integrity([first, second])
    manager.free(second)
    manager.free(second)  # nothing happens
    assert counts(manager) == (4, 0, 4)
    manager.check_integrity([first, second])


def test_allocation_is_all_or_nothing():
    manager = make_manager(num_pages=5)
    first, second = make_request(8), make_request([7] * 12)
    assert manager.allocate(first, 8)
    assert not manager.allocate(second, 12)
    assert second.page_ids == [] and counts(manager) == (2, 0, 2)
    assert not manager.allocate(first, 17) and len(first.page_ids) == 2
    assert not manager.allocate(second, 8, headroom=1)
    assert manager.allocate(second, 8)
    manager.check_integrity([first, second])


@pytest.mark.parametrize(("length", "reused"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 8)])
def test_whole_pages_are_reused_but_never_the_whole_prompt(length, reused):
    manager = make_manager()
    first = run_whole(manager, make_request(11))  # pages 0 and 1 full, the third not
    second = make_request(length)
    assert manager.match_prefix(second) == reused
    assert second.page_ids == []  # matching changes nothing
    assert manager.allocate(second, length)
    assert second.num_computed_tokens == reused
    assert second.page_ids[: reused // PAGE] == first.page_ids[: reused // PAGE]
    assert not set(second.page_ids[reused // PAGE :]) & set(first.page_ids)
    assert manager.stats().hit_tokens == reused
    assert manager.stats().queried_tokens == 11 + length
    manager.check_integrity([first, second])


def test_only_what_is_computed_is_reused():
    manager = make_manager()
    first = make_request(12)
    assert manager.allocate(first, 12)
    manager.commit(first)  # nothing is written yet
    assert manager.match_prefix(make_request(12)) == 0
    first.num_computed_tokens = 7
    manager.commit(first)
    assert manager.match_prefix(make_request(12)) == 4
    first.num_computed_tokens = 12
    manager.commit(first)
    assert manager.match_prefix(make_request(12)) == 8
    assert manager.match_prefix(make_request(13)) == 12


def test_output_tokens_are_reused_too():
    manager = make_manager()
    request = run_whole(manager, make_request(6, output=(50, 51, 52)))
    follow_up = make_request([*request.token_ids, 60])
    assert manager.match_prefix(follow_up) == 8
    other = make_request([*request.token_ids[:7], 59, 60])
    assert manager.match_prefix(other) == 4


def test_a_page_depends_on_everything_before_it():
    manager = make_manager()
    run_and_free(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    assert manager.match_prefix(make_request([1, 2, 3, 9, 5, 6, 7, 8, 0])) == 0
    assert manager.match_prefix(make_request([5, 6, 7, 8, 0])) == 0
    assert manager.match_prefix(make_request([1, 2, 3, 4, 5, 6, 7, 8, 0])) == 8


def test_adapters_and_their_versions_share_nothing():
    tenants = [None, FakeAdapter(1, "x"), FakeAdapter(1, "y"), FakeAdapter(2, "x")]
    for owner in tenants:
        manager = make_manager()
        run_and_free(manager, 8, adapter=owner)
        for tenant in tenants:
            expected = 8 if tenant is owner else 0
            assert manager.match_prefix(make_request(9, adapter=tenant)) == expected


def test_prompt_logprobs_are_never_served_from_the_cache_but_fill_it():
    manager = make_manager()
    run_and_free(manager, 8, prompt_logprobs=0)
    assert manager.match_prefix(make_request(9)) == 8
    asking = make_request(9, prompt_logprobs=1)
    assert manager.match_prefix(asking) == 0
    assert manager.allocate(asking, 9) and asking.num_computed_tokens == 0
    manager.check_integrity([asking])


def test_without_block_reuse_nothing_is_kept():
    manager = make_manager(reuse=False)
    run_and_free(manager, 8)
    assert manager.match_prefix(make_request(9)) == 0
    assert counts(manager) == (8, 0, 0)


def test_sharing_keeps_pages_until_the_last_holder_lets_go():
    manager = make_manager()
    first = run_whole(manager, make_request(8))
    second = run_whole(manager, make_request(9))
    assert second.page_ids[:2] == first.page_ids and counts(manager) == (5, 0, 3)
    manager.free(first)
    assert counts(manager) == (5, 0, 3)
    manager.check_integrity([first, second])
    manager.free(second)
    assert counts(manager) == (6, 2, 0)
    assert first.page_ids == [] and first.num_computed_tokens == 0
    manager.check_integrity([])


def test_the_same_prompt_computed_twice_is_registered_once():
    manager = make_manager()
    first, second = make_request(8), make_request(8)
    assert manager.allocate(first, 8) and manager.allocate(second, 8)
    for request in (first, second):
        request.num_computed_tokens = 8
        manager.commit(request)
    manager.check_integrity([first, second])
    manager.free(second)
    assert counts(manager) == (6, 0, 2)
    manager.free(first)
    assert counts(manager) == (6, 2, 0)


def test_least_recently_used_pages_give_way_ends_before_beginnings():
    manager = make_manager(num_pages=7)
    run_and_free(manager, [1] * 8)
    run_and_free(manager, [2] * 8)
    run_and_free(manager, [1] * 9)  # touches the first again: its two pages are now the younger ones
    assert counts(manager) == (2, 4, 0)
    held = make_request([3] * 12)
    assert manager.allocate(held, 12)  # two free pages and the end of [2] * 8
    assert manager.match_prefix(make_request([2] * 9)) == 4
    assert manager.match_prefix(make_request([1] * 9)) == 8
    assert manager.allocate(held, 20)
    assert manager.match_prefix(make_request([2] * 9)) == 0
    assert manager.match_prefix(make_request([1] * 9)) == 4
    manager.check_integrity([held])


def test_reused_pages_do_not_count_as_available_to_their_own_request():
    manager = make_manager(num_pages=4)
    run_and_free(manager, 8)
    assert counts(manager) == (1, 2, 0)
    request = make_request(16)
    assert not manager.allocate(request, 16)  # two reused, one free, and none to take for the fourth
    assert counts(manager) == (1, 2, 0) and request.page_ids == []
    assert manager.allocate(request, 12) and request.num_computed_tokens == 8
    manager.check_integrity([request])


def test_discarded_pages_are_not_reused_even_while_shared():
    manager = make_manager()
    first = run_whole(manager, make_request(8))
    second = run_whole(manager, make_request(9))
    manager.free(first, discard=True)
    assert manager.match_prefix(make_request(9)) == 0
    manager.check_integrity([second])
    manager.free(second)
    assert counts(manager) == (8, 0, 0)


def test_pages_computed_anew_are_registered_anew():
    manager = make_manager()
    request = run_whole(manager, make_request(8))
    manager.free(request, discard=True)
    run_whole(manager, request)
    assert manager.match_prefix(make_request(9)) == 8
    manager.check_integrity([request])


def test_a_preempted_request_finds_its_own_pages_again():
    manager = make_manager()
    request = run_whole(manager, make_request(6, output=(50, 51)))
    manager.free(request)
    append_token(request, 52)
    assert manager.match_prefix(request) == 8
    run_whole(manager, request)
    manager.check_integrity([request])


@settings(deadline=None, derandomize=True, database=None, max_examples=60)
@given(seed=st.integers(0, 10**6), num_pages=st.integers(2, 14), reuse=st.booleans())
def test_random_use_keeps_contents_right_and_loses_no_page(seed, num_pages, reuse):
    rng = random.Random(seed)
    manager = make_manager(num_pages, reuse)
    content = KvContent(PAGE)
    adapters = [None, FakeAdapter(1, "x"), FakeAdapter(1, "y")]
    live = []
    for _ in range(80):
        action = rng.random()
        if action < 0.35:
            prompt = [rng.randrange(2) for _ in range(rng.randint(1, 14))]
            live.append(make_request(prompt, adapter=rng.choice(adapters), max_tokens=99))
        elif live and action < 0.85:
            request = rng.choice(live)
            fresh = not request.page_ids
            if manager.allocate(request, request.num_tokens, headroom=rng.choice([0, 0, 1])):
                if fresh:
                    assert request.num_computed_tokens < request.num_tokens
                    content.check(request, request.num_computed_tokens)
                stop = rng.randint(request.num_computed_tokens, request.num_tokens)
                content.write(request, request.num_computed_tokens, stop)
                request.num_computed_tokens = stop
                manager.commit(request)
                if request.num_uncomputed_tokens == 0:
                    append_token(request, rng.randrange(2))
        elif live:
            request = live[rng.randrange(len(live))]
            manager.free(request, discard=rng.random() < 0.2)
            if rng.random() < 0.5:
                live.remove(request)
        manager.check_integrity(live)
    for request in live:
        manager.free(request)
    manager.check_integrity([])
    assert manager.stats().held_pages == 0
