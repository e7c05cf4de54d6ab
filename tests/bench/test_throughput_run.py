"""A stream on a clock that only this file moves: what is sent when, and which times come out."""

import pytest

from tensorrt_lora.bench.throughput_run import RequestTimes, ThroughputRun
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.sampling_params import SamplingParams


class FakeEngine:
    """A clock, and an executor that gives each request a token a step; a step takes a second."""

    def __init__(self) -> None:
        self.time = 100.0
        self.sleeps: list[float] = []
        self.batches: list[list[int]] = []
        self.failure: str | None = None
        self._left: dict[int, int] = {}

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def enqueue(self, request: GenerationRequest) -> None:
        assert request.sampling_params.max_tokens is not None
        self._left[request.request_id] = request.sampling_params.max_tokens

    def step(self) -> list[GenerationResponse]:
        self.time += 1.0
        self.batches.append(list(self._left))
        responses = [GenerationResponse(request, token_ids=[0], error=self.failure) for request in self._left]
        self._left = {request: tokens - 1 for request, tokens in self._left.items() if tokens > 1}
        return responses


def run(engine: FakeEngine, num_tokens: list[int], arrivals: list[float]) -> list[RequestTimes]:
    requests = [
        GenerationRequest(7 + index, [1], SamplingParams(max_tokens=tokens, ignore_eos=True))
        for index, tokens in enumerate(num_tokens)
    ]
    return ThroughputRun(engine, requests, arrivals, now=engine.now, sleep=engine.sleep).finish()


def test_requests_join_when_due() -> None:
    engine = FakeEngine()
    first, second, third = run(engine, [3, 2, 2], [0.0, 0.5, 10.0])
    assert engine.batches == [[7], [7, 8], [7, 8], [9], [9]]
    assert engine.sleeps == [7.0]  # the engine is idle from 3 to 10
    assert first == RequestTimes(due=0.0, submitted=0.0, tokens=[1.0, 2.0, 3.0])
    # Due in the middle of a step: the wait for the next one counts.
    assert second == RequestTimes(due=0.5, submitted=1.0, tokens=[2.0, 3.0])
    assert (second.ttft_s, second.e2e_s, second.gaps) == (1.5, 2.5, [1.0])
    assert third == RequestTimes(due=10.0, submitted=10.0, tokens=[11.0, 12.0])


def test_all_at_once() -> None:
    engine = FakeEngine()
    times = run(engine, [2, 2], [0.0, 0.0])
    assert engine.batches == [[7, 8], [7, 8]] and engine.sleeps == []
    assert [request.ttft_s for request in times] == [1.0, 1.0]


def test_an_idle_engine_is_not_stepped_before_the_first_arrival() -> None:
    engine = FakeEngine()
    (times,) = run(engine, [2], [4.0])
    assert engine.sleeps == [4.0] and times.ttft_s == 1.0


def test_a_failed_request_ends_the_run() -> None:
    engine = FakeEngine()
    engine.failure = "no room"
    with pytest.raises(ValueError, match="request 7 of the benchmark failed: no room"):
        run(engine, [2], [0.0])
