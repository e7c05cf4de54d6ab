"""One batch on its way through an engine, and the times of its milestones.

Made by `BenchEngine`, which knows the requests; stepped to the end by the latency benchmark, stopped in the
middle by the trace.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tensorrt_lora.bench.timed_model_engine import TimedModelEngine
from tensorrt_lora.engine.generation_request import GenerationRequest
from tensorrt_lora.engine.py_executor import PyExecutor


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """When a batch had got how far, from the moment it was submitted.

    Attributes:
        e2e_s: until the last request ended, seconds.
        ttft_s: until every request had its first token, seconds; from here on every step is a decode step.
        num_decode_steps: steps after that.
        host_ms_per_step: of a decode step (median): what the host does from the start of the step until the device
            has all its work.
    """

    e2e_s: float
    ttft_s: float
    num_decode_steps: int
    host_ms_per_step: float

    @property
    def ms_per_token(self) -> float:
        """Milliseconds of a decode step."""
        return (self.e2e_s - self.ttft_s) / self.num_decode_steps * 1e3


class BatchRun:
    """Submits requests at once, then runs the executor's steps in the calling thread.

    Args:
        executor: idle.
        engine: the executor's.
        requests: all of one length.
    """

    def __init__(self, executor: PyExecutor, engine: TimedModelEngine, requests: Sequence[GenerationRequest]) -> None:
        assert not executor.has_work
        self._executor = executor
        self._engine = engine
        self._without_token = {request.request_id for request in requests}
        self._host_seconds: list[float] = []
        self._start = self._first_tokens = time.perf_counter()
        for request in requests:
            executor.enqueue(request)

    def prefill(self) -> None:
        """Step until every request has its first token."""
        while self._without_token:
            self._step()
        self._first_tokens = time.perf_counter()

    def decode_step(self) -> None:
        """One more token for every request; nothing happens after the last."""
        if self._executor.has_work:
            start = time.perf_counter()
            self._step()
            self._host_seconds.append(self._engine.queued_at - start)

    def finish(self) -> BatchTimes:
        """Prefill, and decode to the end."""
        self.prefill()
        while self._executor.has_work:
            self.decode_step()
        end = time.perf_counter()
        return BatchTimes(
            e2e_s=end - self._start,
            ttft_s=self._first_tokens - self._start,
            num_decode_steps=len(self._host_seconds),
            host_ms_per_step=statistics.median(self._host_seconds) * 1e3,
        )

    def _step(self) -> None:
        for response in self._executor.step():
            if response.error is not None:
                raise ValueError(f"request {response.request_id} of the benchmark failed: {response.error}")
            self._without_token.discard(response.request_id)
