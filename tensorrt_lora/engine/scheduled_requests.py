"""What one step computes: prefill chunks first, then one token for each request in decode.

Made by the scheduler, read by the model engine and `StepRunner`. Knows nothing of tensors.
"""

from dataclasses import dataclass, field

from tensorrt_lora.engine.llm_request import LlmRequest


@dataclass(slots=True)
class ContextChunk:
    """`length` consecutive tokens of a request's prefill, from position `start`.

    `is_last` is settled when the chunk is made: it ends at the request's newest token, so its last position
    yields the logits of the next one. A request that was preempted prefills its output tokens too.
    """

    request: LlmRequest
    start: int
    length: int
    is_last: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_last = self.stop == self.request.num_tokens

    @property
    def stop(self) -> int:
        return self.start + self.length

    @property
    def token_ids(self) -> list[int]:
        """The chunk's token ids, `length` of them."""
        return self.request.tokens_between(self.start, self.stop)


@dataclass(slots=True)
class ScheduledRequests:
    """One step's batch, in the order of its rows."""

    context: list[ContextChunk] = field(default_factory=list)
    generation: list[LlmRequest] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.context or self.generation)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.context) + len(self.generation)

    @property
    def requests(self) -> list[LlmRequest]:
        """All requests of the step, contexts first."""
        return [chunk.request for chunk in self.context] + self.generation

    @property
    def sampled_requests(self) -> list[LlmRequest]:
        """The requests that get a token from this step, in row order: last chunks, then decodes."""
        return [chunk.request for chunk in self.context if chunk.is_last] + self.generation
