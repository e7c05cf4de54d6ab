"""The model engine with a clock: how many steps there were, and when the host had queued the last.

Used by `BenchEngine` in place of the plain one.
"""

import time

from tensorrt_lora.engine.model_engine import PyTorchModelEngine, StepOutput
from tensorrt_lora.engine.sampler import PendingSamples
from tensorrt_lora.engine.scheduled_requests import ScheduledRequests


class TimedModelEngine(PyTorchModelEngine):
    """Counts forwards; remembers the end of the host's part of the last, before anything waits for the device."""

    queued_at = 0.0  # time.perf_counter() seconds
    num_steps = 0

    def forward(self, scheduled: ScheduledRequests, in_flight: PendingSamples | None = None) -> StepOutput:
        output = super().forward(scheduled, in_flight)
        self.queued_at = time.perf_counter()
        self.num_steps += 1
        return output
