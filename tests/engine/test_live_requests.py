"""From a sequence's start to its last response, and to its adapter's release."""

import pytest

from tensorrt_lora.engine.adapter_capacity import BaseOnlyCapacity
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.engine.kv_cache_manager import KvCacheManager
from tensorrt_lora.engine.live_requests import LiveRequests
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.llm_request_factory import LlmRequestFactory
from tensorrt_lora.engine.sampler import SampledToken
from tensorrt_lora.engine.scheduler import Scheduler
from tensorrt_lora.sampling_params import Logprob, SamplingParams


class Store:
    """In place of `AdapterStore`."""

    def __init__(self) -> None:
        self.released: list[object] = []

    def release(self, handle: object) -> None:
        self.released.append(handle)


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(
        max_batch_size=2,
        max_num_tokens=16,
        max_seq_len=64,
        vocab_size=100,
        enable_chunked_prefill=True,
        kv_cache_manager=KvCacheManager(20, 4, True),
        adapter_capacity=BaseOnlyCapacity(),
        max_adapter_wait_iters=3,
    )


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def live(scheduler: Scheduler, store: Store) -> LiveRequests:
    return LiveRequests(scheduler, store)


def add(live: LiveRequests, request_id: int, handle: object = None, **sampling: object) -> list[LlmRequest]:
    message = GenerationRequest(request_id, [1, 2, 3], SamplingParams(**sampling))
    # The scheduler need not know the adapter: what is tested is who gives it back.
    sequences = LlmRequestFactory(eos_token_ids=(7,), engine_seed=0).create(message, request_id, None)
    live.add(list(sequences), handle)
    return sequences


def step(scheduler: Scheduler) -> None:
    scheduler.complete_step(scheduler.schedule())


def ends(responses: list[GenerationResponse]) -> list[tuple[int, int, str | None]]:
    return [(response.request_id, response.sequence_index, response.finish_reason) for response in responses]


def test_the_last_sequence_frees_the_adapter(live: LiveRequests, scheduler: Scheduler, store: Store):
    first, second = add(live, 5, "adapter", n=2, temperature=1.0, max_tokens=8)
    assert len(live) == 1 and live.num_running == 0
    step(scheduler)
    assert live.num_running == 1
    response = live.take_sample(first, SampledToken(7))
    assert (response.token_ids, response.finish_reason, store.released) == ([7], "stop", [])
    response = live.take_sample(second, SampledToken(4))
    assert (response.token_ids, response.finish_reason, len(live)) == ([4], None, 1)
    step(scheduler)
    assert live.take_sample(second, SampledToken(7)).finish_reason == "stop"
    assert store.released == ["adapter"] and len(live) == 0 and not scheduler.has_unfinished


def test_an_abort_ends_what_is_left(live: LiveRequests, scheduler: Scheduler, store: Store):
    first, _, _ = add(live, 5, "adapter", n=3, temperature=1.0)
    add(live, 6)
    step(scheduler)
    live.take_sample(first, SampledToken(7))
    assert ends(live.abort(5)) == [(5, 1, "abort"), (5, 2, "abort")]
    assert store.released == ["adapter"] and live.abort(5) == [] and live.abort(99) == []
    assert ends(live.abort(6)) == [(6, 0, "abort")]
    assert store.released == ["adapter"] and not scheduler.has_unfinished


def test_errors_end_a_sequence(live: LiveRequests, scheduler: Scheduler, store: Store):
    (sampled,), (failed,) = add(live, 1, "one"), add(live, 2, "two")
    step(scheduler)
    responses = [live.take_sample(sampled, SampledToken(0, error="not finite")), live.fail(failed, "broken")]
    assert ends(responses) == [(1, 0, "error"), (2, 0, "error")]
    assert [(response.error, response.token_ids) for response in responses] == [("not finite", []), ("broken", [])]
    assert store.released == ["one", "two"] and not scheduler.has_unfinished


def test_what_comes_once_comes_with_the_first_token(live: LiveRequests, scheduler: Scheduler):
    (sequence,) = add(live, 1, logprobs=0, prompt_logprobs=0, max_tokens=2)
    entry = {4: Logprob(-0.5, 1)}
    sequence.prompt_logprobs += [None, entry, entry]
    step(scheduler)
    first = live.take_sample(sequence, SampledToken(4, logprobs=entry))
    assert (first.logprobs, first.prompt_logprobs) == ([entry], [None, entry, entry])
    step(scheduler)
    second = live.take_sample(sequence, SampledToken(4))
    assert (second.logprobs, second.prompt_logprobs, second.finish_reason) == (None, None, "length")
