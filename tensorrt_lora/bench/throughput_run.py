"""One stream of requests on its way through an engine: submitted when due, timed token by token.

Made by `ThroughputBench` for each rate and mode. Steps the executor in the calling thread, as `BatchRun` does.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse


class SteppedExecutor(Protocol):
    """What a run needs of `PyExecutor`."""

    @property
    def has_work(self) -> bool: ...

    def enqueue(self, request: GenerationRequest) -> None: ...

    def step(self) -> list[GenerationResponse]: ...


@dataclass(slots=True)
class RequestTimes:
    """Milestones of one request, in seconds from the start of the stream.

    Attributes:
        due: when it arrived; waiting for the step that was under way then counts as latency.
        submitted: when the engine got it.
        tokens: when each of its tokens was there.
    """

    due: float
    submitted: float = 0.0
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.tokens[0] - self.due

    @property
    def e2e_s(self) -> float:
        return self.tokens[-1] - self.due

    @property
    def gaps(self) -> list[float]:
        """Seconds between one token and the next."""
        return [after - before for before, after in pairwise(self.tokens)]


class ThroughputRun:
    """Sends a stream and runs the executor's steps until the last request has ended.

    Args:
        executor: idle.
        requests: in order of arrival.
        arrivals: seconds from the start of the stream, ascending.
        now: seconds on a clock.
        sleep: waits for so many seconds of that clock.
    """

    def __init__(
        self,
        executor: SteppedExecutor,
        requests: Sequence[GenerationRequest],
        arrivals: Sequence[float],
        *,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert not executor.has_work
        self._executor = executor
        self._coming = deque(zip(requests, arrivals, strict=True))
        self._times = {request.request_id: RequestTimes(due) for request, due in self._coming}
        self._now = now
        self._sleep = sleep

    def finish(self) -> list[RequestTimes]:
        """Run to the end; the times of each request, in order of arrival.

        Raises:
            ValueError: a request failed.
        """
        start = self._now()
        while self._coming or self._executor.has_work:
            self._submit_due(self._now() - start)
            if not self._executor.has_work:
                self._sleep(max(self._coming[0][1] - (self._now() - start), 0.0))
                continue
            responses = self._executor.step()
            done = self._now() - start
            for response in responses:
                self._record(response, done)
        return list(self._times.values())

    def _submit_due(self, elapsed: float) -> None:
        while self._coming and self._coming[0][1] <= elapsed:
            request, _ = self._coming.popleft()
            self._times[request.request_id].submitted = elapsed
            self._executor.enqueue(request)

    def _record(self, response: GenerationResponse, done: float) -> None:
        if response.error is not None:
            raise ValueError(f"request {response.request_id} of the benchmark failed: {response.error}")
        self._times[response.request_id].tokens += [done] * len(response.token_ids)
