import random
import zlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrt_lora.engine.kv_cache_manager import KvCacheManager
from tensorrt_lora.engine.llm_request import IN_FLIGHT_TOKEN, RequestState
from tensorrt_lora.engine.scheduler import Scheduler
from tensorrt_lora.lora.adapter_slot_manager import AdapterSlotManager
from tests.support.kv_content import KvContent
from tests.support.llm_requests import FakeAdapter, make_request

PAGE = 4
VOCAB = 1000


class Engine:
    """A scheduler with everything around it but the model: checks each step, and makes up the tokens."""

    def __init__(
        self,
        *,
        batch=4,
        tokens=32,
        chunked=True,
        pages=41,
        reuse=True,
        slots=2,
        rank_pages=99,
        wait=3,
        seq_len=200,
        run_ahead=False,
    ):
        self.batch, self.tokens, self.run_ahead = batch, tokens, run_ahead
        self.in_flight = []
        self.kv_cache = KvCacheManager(pages, PAGE, reuse)
        self.slots = AdapterSlotManager(num_slots=slots, num_pages=rank_pages)
        self.scheduler = Scheduler(
            max_batch_size=batch,
            max_num_tokens=tokens,
            max_seq_len=seq_len,
            vocab_size=VOCAB,
            enable_chunked_prefill=chunked,
            kv_cache_manager=self.kv_cache,
            adapter_capacity=self.slots,
            max_adapter_wait_iters=wait,
        )
        self.content = KvContent(PAGE)
        self.requests = []
        self.overtaken = Counter()

    def add(self, *args, **kwargs):
        request = make_request(*args, **kwargs)
        self.scheduler.add(request)
        self.requests.append(request)
        return request

    def step(self):
        """One step; returns (number of prefill tokens, number of decodes)."""
        waiting = self.scheduler.waiting
        scheduled = self.scheduler.schedule()
        self._check(scheduled)
        self._count_overtakes(waiting)
        self._settle()
        for chunk in scheduled.context:
            self.content.write(chunk.request, chunk.start, chunk.stop)
        for request in scheduled.generation:
            if not request.is_finished:
                self.content.write(request, request.num_computed_tokens, request.num_tokens)
        self.scheduler.complete_step(scheduled)
        self.in_flight = scheduled.sampled_requests
        if not (self.run_ahead and self.scheduler.may_run_ahead()):
            self._settle()
        self.kv_cache.check_integrity(self.requests)
        return sum(chunk.length for chunk in scheduled.context), len(scheduled.generation)

    def _settle(self):
        """Learn the tokens of the step before; with `run_ahead` only after the next one is scheduled."""
        for request in self.in_flight:
            if not request.is_finished and request.resolve_token(next_token(request)):
                self.scheduler.finish(request)
        self.in_flight = []

    def run(self, max_steps=2000):
        steps = 0
        while self.scheduler.has_unfinished:
            self.step()
            steps += 1
            assert steps < max_steps, "the scheduler does not get on"
        assert self.kv_cache.stats().held_pages == 0
        return steps

    def step_until(self, condition, max_steps=100):
        """Steps it took for `condition()` to become true."""
        for steps in range(max_steps):
            if condition():
                return steps
            self.step()
        raise AssertionError("it never comes to that")

    def _check(self, scheduled):
        scheduler = self.scheduler
        assert scheduled or not scheduler.has_unfinished or self.run_ahead
        assert scheduled.num_tokens <= self.tokens
        assert len(scheduler.running) <= self.batch
        assert len({id(request) for request in scheduled.requests}) == len(scheduled.requests)
        assert set(scheduled.requests) <= set(scheduler.running)
        placed = self.slots.assign(scheduler.active_adapters.values())  # asserts that all active adapters fit
        assert len(placed) <= self.slots.num_slots
        for chunk in scheduled.context:
            assert chunk.length > 0 and chunk.start == chunk.request.num_computed_tokens
            assert len(chunk.request.page_ids) * PAGE >= chunk.stop
            assert chunk.request.state is RequestState.CONTEXT
        for request in scheduled.generation:
            assert request.num_computed_tokens == request.num_tokens - 1
            assert len(request.page_ids) * PAGE >= request.num_tokens
            assert request.state is RequestState.GENERATION
        for request in scheduler.waiting:
            assert request.page_ids == [] and request.state is RequestState.WAITING

    def _count_overtakes(self, waiting_before):
        started = [request for request in waiting_before if request in self.scheduler.running]
        for request in waiting_before:
            if any(later.arrival > request.arrival for later in started) and request not in started:
                self.overtaken[request] += 1


def next_token(request):
    """Any token that depends on the adapter and on all tokens so far."""
    known = [token for token in request.token_ids if token != IN_FLIGHT_TOKEN]
    return 100 + zlib.crc32(repr((request.adapter_key, known)).encode()) % 500


def expected_output(request):
    """What the request gets when it runs alone."""
    alone = make_request(list(request.prompt_token_ids), adapter=request.adapter)
    for _ in request.output_token_ids:
        alone.output_token_ids.append(next_token(alone))
    return alone.output_token_ids


# Batches


def test_one_request_prefills_then_decodes():
    engine = Engine()
    request = engine.add(10, max_tokens=3)
    assert engine.step() == (10, 0)
    assert request.state is RequestState.GENERATION and request.num_computed_tokens == 10
    assert engine.step() == (0, 1)
    assert engine.step() == (0, 1)
    assert request.finish_reason == "length" and request.is_finished
    assert not engine.scheduler.has_unfinished and not engine.scheduler.schedule()


def test_prompts_longer_than_the_budget_go_in_chunks_beside_decodes():
    engine = Engine(tokens=8, reuse=False)
    first = engine.add(3, max_tokens=20)
    engine.step()
    engine.add(20, max_tokens=1)
    assert [engine.step() for _ in range(4)] == [(7, 1), (7, 1), (6, 1), (0, 1)]
    assert len(first.output_token_ids) == 5


def test_a_prefill_under_way_goes_before_newcomers():
    engine = Engine(tokens=8, reuse=False)
    first, second = engine.add(12, max_tokens=2), engine.add([7] * 6, max_tokens=2)
    engine.step()
    assert second.state is RequestState.WAITING
    scheduled = engine.scheduler.schedule()
    assert [(chunk.request, chunk.start, chunk.length) for chunk in scheduled.context] == [
        (first, 8, 4),
        (second, 0, 4),
    ]
    assert scheduled.sampled_requests == [first]


def test_the_batch_size_bounds_running_requests():
    engine = Engine(batch=2)
    requests = [engine.add(3, max_tokens=2) for _ in range(3)]
    engine.step()
    assert engine.scheduler.running == tuple(requests[:2])
    assert engine.scheduler.waiting == (requests[2],)
    engine.run()


def test_more_decodes_than_tokens_take_turns_from_the_earliest():
    engine = Engine(batch=4, tokens=2, reuse=False)
    requests = [engine.add([index], max_tokens=4) for index in range(4)]
    engine.run()
    assert [len(request.output_token_ids) for request in requests] == [4] * 4


def test_a_cached_prefix_is_not_computed_again():
    engine = Engine(tokens=8)
    engine.add(16, max_tokens=1)
    engine.run()
    request = engine.add(20, max_tokens=1)
    assert engine.step() == (4, 0)
    assert request.num_cached_tokens == 16 and request.is_finished


def test_without_chunked_prefill_prompts_are_scheduled_whole():
    engine = Engine(tokens=10, chunked=False, reuse=False)
    engine.add(6, max_tokens=5)
    second = engine.add(9, max_tokens=1)
    assert engine.step() == (6, 0)  # the second does not fit beside the first
    assert engine.step() == (9, 1)
    assert second.is_finished
    third = engine.add(10, max_tokens=1)
    # Only once no decode takes a token.
    assert engine.step_until(lambda: third.state is not RequestState.WAITING) == 4
    assert third.is_finished


# Refusals


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt is empty: give at least one token"),
        ([1, 1000, 2], {}, "the prompt holds token id 1000, but the model's ids are 0 to 999"),
        ([-1], {}, "the prompt holds token id -1, but the model's ids are 0 to 999"),
        (
            40,
            {"max_tokens": 21},
            "the prompt's 40 tokens and max_tokens=21 exceed max_seq_len=60: shorten the prompt or lower max_tokens",
        ),
        (
            33,
            {"max_tokens": 1},
            "the prompt's 33 tokens exceed max_num_tokens=32, and enable_chunked_prefill is off: shorten the "
            "prompt, or change one of the two",
        ),
        (
            20,
            {"max_tokens": 22},
            "the prompt's 20 tokens and max_tokens=22 exceed the KV cache's 40 tokens: shorten the prompt, "
            "lower max_tokens, or enlarge kv_cache_config",
        ),
        (
            4,
            {"adapter": FakeAdapter(1, num_pages=6)},
            "the adapter needs 6 pages of rank rows, more than there are for all adapters together: raise "
            "max_loras or max_lora_rank",
        ),
    ],
)
def test_what_could_never_run_is_refused_with_a_reason(prompt, options, message):
    engine = Engine(pages=11, seq_len=60, chunked=False, rank_pages=5)
    request = make_request(prompt, **options)
    assert engine.scheduler.refusal(request) == message
    with pytest.raises(ValueError) as error:
        engine.scheduler.add(request)
    assert str(error.value) == message
    assert not engine.scheduler.has_unfinished
    engine.add(4)
    engine.run()


def test_the_largest_request_that_is_accepted_runs():
    engine = Engine(pages=11, seq_len=60)
    request = engine.add(20, max_tokens=21)  # 40 tokens in the cache: the last one is never written
    engine.add([5] * 8, max_tokens=30)
    engine.run()
    assert len(request.output_token_ids) == 21


# Preemption


def test_the_latest_arrival_gives_way_and_comes_back_with_its_output():
    engine = Engine(pages=8, reuse=False)
    first = engine.add([1] * 8, max_tokens=14)
    engine.step()
    second = engine.add([2] * 7, max_tokens=12)
    engine.step_until(lambda: second.num_preemptions > 0)
    assert engine.scheduler.running == (first,) and engine.scheduler.waiting == (second,)
    kept = list(second.output_token_ids)
    assert kept and second.num_computed_tokens == 0 and second.page_ids == []
    assert first.num_preemptions == 0
    engine.run()
    assert second.output_token_ids[: len(kept)] == kept
    for request in (first, second):
        assert request.output_token_ids == expected_output(request)
        assert request.finish_reason == "length"
    assert engine.scheduler.num_preemptions >= 1


def test_a_preempted_request_goes_before_those_that_came_later():
    engine = Engine(pages=8, reuse=False)
    engine.add([1] * 8, max_tokens=14)
    engine.step()
    second = engine.add([2] * 7, max_tokens=12)
    engine.step()
    third = engine.add([3] * 4, max_tokens=2)
    engine.step_until(lambda: second.num_preemptions > 0)
    assert engine.scheduler.waiting == (second, third)


def test_nobody_starts_in_a_step_that_preempts():
    engine = Engine(pages=9, reuse=False)
    engine.add([1] * 12, max_tokens=14)
    engine.step()
    second = engine.add([2] * 11, max_tokens=12)
    engine.step_until(lambda: second.state is RequestState.GENERATION)
    earlier = make_request([3], max_tokens=1)
    earlier.arrival = -1  # not in the way of the second, and small enough for what it gives back
    engine.requests.append(earlier)
    engine.step_until(lambda: engine.kv_cache.stats().free_pages == 0)
    engine.scheduler.add(earlier)
    engine.step_until(lambda: second.num_preemptions > 0)
    assert earlier.state is RequestState.WAITING
    engine.step()
    assert earlier.is_finished
    engine.run()


def test_a_newcomer_leaves_a_page_for_each_running_request():
    engine = Engine(pages=7, reuse=False)
    engine.add([1] * 8, max_tokens=8)
    engine.step()
    second = engine.add([2] * 11, max_tokens=2)  # fits into the three pages left, but the first needs one soon
    engine.step()
    assert second.state is RequestState.WAITING
    engine.run()
    assert engine.scheduler.num_preemptions == 0


def test_a_preempted_request_waits_and_is_counted_from_new():
    engine = Engine(pages=8)
    engine.add([1] * 8, max_tokens=14)
    engine.step()
    second = engine.add([2] * 7, max_tokens=12)
    second.overtaken_since = 1
    engine.step_until(lambda: second.num_preemptions > 0)
    assert second.overtaken_since is None
    engine.step_until(lambda: second.state is not RequestState.WAITING)
    assert second.num_cached_tokens == 0  # what it finds of its own is no saving to report
    engine.run()


def test_a_repeated_prefill_beyond_the_budget_is_cut_even_without_chunked_prefill():
    engine = Engine(pages=12, tokens=10, chunked=False, reuse=False)
    first, second = engine.add([1] * 8, max_tokens=30), engine.add([2] * 8, max_tokens=20)
    engine.run()
    assert second.num_preemptions > 0
    for request in (first, second):
        assert request.output_token_ids == expected_output(request)


def test_a_preempted_request_holds_no_adapter_slot():
    engine = Engine(pages=8, reuse=False, slots=1)
    adapter = FakeAdapter(1)
    engine.add([1] * 8, max_tokens=14)
    engine.step()
    second = engine.add([2] * 7, max_tokens=12, adapter=adapter)
    engine.step()
    assert list(engine.scheduler.active_adapters) == [adapter.key]
    engine.step_until(lambda: second.num_preemptions > 0)
    assert engine.scheduler.active_adapters == {}


# Ends


@pytest.mark.parametrize("end", ["abort", "fail"])
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_ending_a_request_in_any_state_frees_everything(end, steps):
    engine = Engine(tokens=8, reuse=False)
    request = engine.add(12, max_tokens=9, adapter=FakeAdapter(1))
    other = engine.add([3] * 5, max_tokens=2)
    for _ in range(steps):
        engine.step()
    if end == "abort":
        engine.scheduler.abort(request)
        engine.scheduler.abort(request)
    else:
        engine.scheduler.fail(request, "broken")
        engine.scheduler.fail(request, "again")
    assert request.finish_reason == ("abort" if end == "abort" else "error")
    assert request.error == (None if end == "abort" else "broken")
    assert request.is_finished and request.page_ids == []
    assert engine.scheduler.active_adapters == {}
    engine.kv_cache.check_integrity(engine.requests)
    engine.run()
    assert other.finish_reason == "length"


def test_ending_between_schedule_and_completion_leaves_the_request_out():
    engine = Engine()
    request, other = engine.add(8, max_tokens=2), engine.add([3] * 8, max_tokens=2)
    scheduled = engine.scheduler.schedule()
    engine.scheduler.fail(request, "broken")
    engine.scheduler.complete_step(scheduled)
    assert request.page_ids == [] and request.state is RequestState.FINISHED
    assert other.num_computed_tokens == 8
    engine.kv_cache.check_integrity(engine.requests)
    assert engine.kv_cache.match_prefix(make_request(9)) == 0


def test_what_a_failed_request_wrote_is_not_reused():
    engine = Engine(tokens=8)
    request = engine.add(20, max_tokens=2)
    engine.step()
    assert engine.kv_cache.match_prefix(make_request(9)) == 8
    engine.scheduler.fail(request, "broken")
    assert engine.kv_cache.match_prefix(make_request(9)) == 0


def test_an_abort_does_not_change_how_a_request_ended():
    engine = Engine()
    request = engine.add(4, max_tokens=1)
    engine.run()
    engine.scheduler.abort(request)
    assert request.finish_reason == "length"


# Adapters


def test_base_requests_take_no_slot_and_equal_adapters_share_one():
    engine = Engine(batch=8, slots=2, reuse=False)
    a, b, c = FakeAdapter(1), FakeAdapter(2), FakeAdapter(3)
    requests = [engine.add(3, adapter=adapter, max_tokens=9) for adapter in (None, a, b, c, a, None, b)]
    engine.step()
    assert engine.scheduler.waiting == (requests[3],)
    assert set(engine.scheduler.active_adapters) == {a.key, b.key}


def test_another_version_of_an_adapter_is_another_adapter():
    engine = Engine(slots=1)
    engine.add(3, adapter=FakeAdapter(1, "x"), max_tokens=9)
    second = engine.add(3, adapter=FakeAdapter(1, "y"), max_tokens=9)
    engine.step()
    assert engine.scheduler.waiting == (second,)


def test_pages_of_rank_rows_bind_as_slots_do():
    engine = Engine(slots=4, rank_pages=5, batch=8)
    adapters = [FakeAdapter(1, num_pages=3), FakeAdapter(2, num_pages=3), FakeAdapter(3, num_pages=2)]
    requests = [engine.add(3, adapter=adapter, max_tokens=5) for adapter in adapters]
    engine.step()
    assert engine.scheduler.running == (requests[0], requests[2])
    engine.run()


def test_a_prefill_under_way_keeps_its_slot():
    engine = Engine(slots=1, tokens=4)
    engine.add(12, adapter=FakeAdapter(1), max_tokens=1)
    second = engine.add(4, adapter=FakeAdapter(2), max_tokens=1)
    for _ in range(2):
        engine.step()
        assert second.state is RequestState.WAITING
    engine.run()


def test_capacity_is_asked_once_for_each_adapter_and_step(monkeypatch):
    engine = Engine(slots=1, wait=99)
    engine.add(3, adapter=FakeAdapter(0), max_tokens=9)
    engine.step()
    for index in range(20):
        engine.add(3, adapter=FakeAdapter(1 + index % 2), max_tokens=9)
    asked = []
    can_admit = engine.slots.can_admit
    monkeypatch.setattr(
        engine.slots,
        "can_admit",
        lambda active, tenant: asked.append(tenant.key) or can_admit(active, tenant),
    )
    engine.step()
    assert asked == [(1, "v1"), (2, "v1")]


@pytest.mark.parametrize("wait", [0, 1, 5])
def test_an_adapter_kept_busy_for_ever_does_not_starve_another(wait):
    engine = Engine(slots=1, batch=3, wait=wait, reuse=False)
    busy, cold = FakeAdapter(1), FakeAdapter(2)
    engine.add(3, adapter=busy, max_tokens=6)
    engine.step()
    waiting = engine.add(3, adapter=cold, max_tokens=2)
    steps = 0
    while waiting.state is RequestState.WAITING:
        engine.add(3, adapter=busy, max_tokens=6)
        engine.step()
        steps += 1
        assert steps <= wait + 1 + 6 + 1, "the cold adapter waits for longer than the busy ones need to drain"
    assert engine.overtaken[waiting] <= wait
    assert engine.overtaken[waiting] == wait or wait > 1
    engine.run()


def test_requests_ahead_of_a_waiting_one_are_not_held_up_by_it():
    engine = Engine(slots=1, batch=2, wait=0, reuse=False)
    busy, cold = FakeAdapter(1), FakeAdapter(2)
    engine.add(3, adapter=busy, max_tokens=3)
    engine.add(3, adapter=busy, max_tokens=3)
    third = engine.add(3, adapter=busy, max_tokens=3)
    last = engine.add(3, adapter=cold, max_tokens=3)
    behind = engine.add(3, max_tokens=3)
    for _ in range(4):
        engine.step()
    assert engine.scheduler.running == (third,)
    assert engine.scheduler.waiting == (last, behind)
    engine.run()


@settings(deadline=None, derandomize=True, database=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    wait=st.integers(0, 6),
    batch=st.integers(1, 5),
    num_adapters=st.integers(1, 8),
)
def test_no_request_is_overtaken_for_longer_than_allowed(seed, wait, batch, num_adapters):
    rng = random.Random(seed)
    engine = Engine(slots=2, batch=batch, wait=wait, tokens=12, reuse=rng.random() < 0.5, run_ahead=rng.random() < 0.5)
    adapters = [None] + [FakeAdapter(index) for index in range(num_adapters)]
    hot = FakeAdapter(0)
    for _ in range(100):
        for _ in range(rng.choice([0, 0, 1, 2])):
            adapter = hot if rng.random() < 0.4 else rng.choice(adapters)
            engine.add(rng.randint(1, 15), adapter=adapter, max_tokens=rng.randint(1, 8))
        engine.step()
    engine.run()
    assert max(engine.overtaken.values(), default=0) <= wait
    assert all(request.finish_reason == "length" for request in engine.requests)


@settings(deadline=None, derandomize=True, database=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    chunked=st.booleans(),
    reuse=st.booleans(),
    pages=st.integers(7, 20),
    run_ahead=st.booleans(),
)
def test_random_workloads_end_with_the_right_tokens(seed, chunked, reuse, pages, run_ahead):
    """Preemption, chunks, reuse, aborts, two slots and running ahead change what runs when, never what comes out."""
    rng = random.Random(seed)
    engine = Engine(
        pages=pages,
        tokens=rng.randint(12, 24),
        chunked=chunked,
        reuse=reuse,
        batch=rng.randint(1, 6),
        wait=rng.randint(0, 4),
        run_ahead=run_ahead,
    )
    adapters = [None, FakeAdapter(1, "x"), FakeAdapter(1, "y"), FakeAdapter(2), FakeAdapter(3)]
    for _ in range(60):
        if rng.random() < 0.5:
            prompt = [rng.randrange(2) for _ in range(rng.randint(1, 12))]
            engine.add(prompt, adapter=rng.choice(adapters), max_tokens=rng.randint(1, 12))
        live = [request for request in engine.requests if not request.is_finished]
        if live and rng.random() < 0.1:
            ended = rng.choice(live)
            if rng.random() < 0.5:
                engine.scheduler.abort(ended)
            else:
                engine.scheduler.fail(ended, "broken")
        engine.step()
    engine.run()
    for request in engine.requests:
        assert request.finish_reason in ("length", "abort", "error")
        if request.output_token_ids[-1:] == [IN_FLIGHT_TOKEN]:  # ended by an abort or an error meanwhile
            assert request.finish_reason != "length"
            request.output_token_ids.pop()
        assert request.output_token_ids == expected_output(request)
        if request.finish_reason == "length":
            assert len(request.output_token_ids) == request.sampling_params.max_tokens
