"""Steps on their way through the device: queued, and then settled, which is when the host learns their tokens.

Called by `PyExecutor` with each batch of the scheduler. Owns the order of forward, sampling and waiting; what a token
means for its request is the affair of `LiveRequests`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tensorrt_lora.engine.generation_request import GenerationResponse
from tensorrt_lora.engine.live_requests import LiveRequests
from tensorrt_lora.engine.model_engine import PromptRows, PyTorchModelEngine, StepOutput
from tensorrt_lora.engine.prompt_logprobs import extend_prompt_logprobs
from tensorrt_lora.engine.sampler import PendingSamples, Sampler
from tensorrt_lora.engine.scheduled_requests import ScheduledRequests
from tensorrt_lora.engine.scheduler import Scheduler

_PROMPT_LOGITS_AT_ONCE = 256  # 150 MB in float32 at a vocabulary of 150,000


@dataclass(slots=True)
class _InFlightStep:
    """A step that the device has been given, and whose tokens the host has not seen yet."""

    output: StepOutput
    samples: PendingSamples


class StepRunner:
    """One step after the other, or with `run_ahead` one ahead of the host.

    Then it queues step n + 1, whose input tokens the device takes from step n's sampler, before it waits for the tokens
    of step n. A sequence that turns out to have ended in step n has a row in step n + 1 whose result is dropped.
    """

    def __init__(
        self, engine: PyTorchModelEngine, scheduler: Scheduler, live: LiveRequests, *, run_ahead: bool
    ) -> None:
        self._engine = engine
        self._sampler = Sampler()
        self._scheduler = scheduler
        self._live = live
        self._run_ahead = run_ahead
        self._in_flight: _InFlightStep | None = None
        self.num_steps = 0

    @property
    def has_step_in_flight(self) -> bool:
        return self._in_flight is not None

    def run(self, scheduled: ScheduledRequests) -> list[GenerationResponse]:
        """Queue this step, then settle the one before it, while this one runs. An empty step only settles."""
        responses: list[GenerationResponse] = []
        before, self._in_flight = self._in_flight, None
        if scheduled:
            self.num_steps += 1
            samples_before = before.samples if before is not None else None
            output = self._engine.forward(scheduled, samples_before)
            self._in_flight = _InFlightStep(output, self._sampler.launch(output.logits, scheduled.sampled_requests))
        if before is not None:
            responses += self._settle(before)
        if self._in_flight is not None:
            self._scheduler.complete_step(scheduled)
            if not (self._run_ahead and self._scheduler.may_run_ahead()):
                step, self._in_flight = self._in_flight, None
                responses += self._settle(step)
        return responses

    def _settle(self, step: _InFlightStep) -> Iterator[GenerationResponse]:
        """Wait for a step's tokens and tell them; what ended meanwhile is passed over."""
        for rows in step.output.prompt_rows:
            error = None if rows.request.is_finished else self._take_prompt_logprobs(rows)
            if error is not None:
                yield self._live.fail(rows.request, error)
        for request, sample in zip(step.samples.rows, step.samples.fetch(), strict=True):
            if not request.is_finished:
                yield self._live.take_sample(request, sample)

    def _take_prompt_logprobs(self, rows: PromptRows) -> str | None:
        """Returns what is wrong with the logits."""
        for offset in range(0, len(rows.positions), _PROMPT_LOGITS_AT_ONCE):
            block = slice(offset, offset + _PROMPT_LOGITS_AT_ONCE)
            positions = rows.positions[block]
            logits = self._engine.compute_logits(rows.hidden[block], [rows.request.adapter], [len(positions)])
            error = extend_prompt_logprobs(rows.request, positions, logits)
            if error is not None:
                return error
        return None
