"""One sequence on its way through the engine: its tokens, its pages, its state, and the rule that ends it.

Made from a `GenerationRequest` by `LlmRequestFactory` (one per sequence), moved by the scheduler, read by the model
engine and the sampler. Host data only; stop strings belong to the front, which aborts.
"""

from dataclasses import dataclass, field
from enum import Enum

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.engine.generation_request import FinishReason
from tensorrt_lora.engine.token_grammar import TokenGrammar
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.sampling_params import Logprob, SamplingParams

IN_FLIGHT_TOKEN = -1
"""Stands for a token that the device has sampled, or will have, and the host does not know yet."""


class RequestState(Enum):
    """Where a sequence stands. CONTEXT, GENERATION and LAST_TOKEN hold pages and an adapter slot."""

    WAITING = "waiting"
    CONTEXT = "context"
    GENERATION = "generation"
    LAST_TOKEN = "last token"  # in flight, and the length limit says that no other follows
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class LlmRequest:
    """One sequence of a request.

    Attributes:
        seed: resolved, signed 64 bits; draws depend on it and on the position alone.
        arrival: counts up with each request; the scheduler's order.
        adapter: the loaded adapter, None for the base model.
        eos_token_ids: the model's end tokens.
        grammar: what may come next, where the form is prescribed.
        num_computed_tokens: leading tokens whose keys and values are in the cache. In decode this is one less
            than `num_tokens`: the newest token is the next step's input.
        num_cached_tokens: prompt tokens taken from the reuse cache when the sequence first ran.
        page_ids: cache pages, in order; page i holds tokens [i * page_size, (i + 1) * page_size).
        page_keys: reuse keys of the leading full pages, as far as they were needed so far.
        num_committed_pages: leading pages of `page_ids` that were offered for reuse already.
        prompt_logprobs: entries so far, one per prompt token, None for the first.
        token_counts: times each token was generated, for penalties; with a repetition penalty the prompt's
            tokens are in it too. None without penalties.
        overtaken_since: scheduling round in which a later request first passed this one while it waited for a
            slot.
    """

    request_id: int
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    sequence_index: int = 0
    adapter: AdapterHandle | None = None
    seed: int = 0
    arrival: int = 0
    eos_token_ids: tuple[int, ...] = ()
    grammar: TokenGrammar | None = None
    state: RequestState = RequestState.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    page_ids: list[int] = field(default_factory=list)
    page_keys: list[bytes] = field(default_factory=list)
    num_committed_pages: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    overtaken_since: int | None = None
    token_counts: dict[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        params = self.sampling_params
        if params.repetition_penalty != 1.0:
            self.token_counts = dict.fromkeys(self.prompt_token_ids, 0)
        elif params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
            self.token_counts = {}
        else:
            self.token_counts = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens; also the position of the token that is sampled next."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids

    @property
    def adapter_key(self) -> AdapterKey | None:
        return None if self.adapter is None else self.adapter.key

    @property
    def is_finished(self) -> bool:
        return self.state is RequestState.FINISHED

    @property
    def needs_newest_token(self) -> bool:
        """Whether the choice of a token depends on the one before it beyond what the model reads."""
        return self.token_counts is not None or self.grammar is not None

    @property
    def stop_ids(self) -> frozenset[int]:
        """Token ids that end the sequence once `min_tokens` are out."""
        params = self.sampling_params
        return frozenset(params.stop_token_ids).union(() if params.ignore_eos else self.eos_token_ids)

    def tokens_between(self, start: int, stop: int) -> list[int]:
        """The token ids at positions [start, stop), without joining prompt and output."""
        boundary = self.num_prompt_tokens
        if stop <= boundary:
            return self.prompt_token_ids[start:stop]
        if start >= boundary:
            return self.output_token_ids[start - boundary : stop - boundary]
        return self.prompt_token_ids[start:] + self.output_token_ids[: stop - boundary]

    def reserve_token(self) -> None:
        """Count the token that the step at hand samples, before the host knows it. At most one token is in flight."""
        assert IN_FLIGHT_TOKEN not in self.output_token_ids[-1:]
        self.output_token_ids.append(IN_FLIGHT_TOKEN)
        if len(self.output_token_ids) >= self.sampling_params.max_tokens:
            self.state = RequestState.LAST_TOKEN

    def resolve_token(self, token_id: int) -> FinishReason | None:
        """Put the sampled token in place of the reserved one; returns (and stores) the finish reason if it is the last.

        A stop token counts only after `min_tokens` tokens, the same bound below which the sampler masks it. The model's
        own end tokens leave `stop_reason` None.
        """
        params = self.sampling_params
        assert self.output_token_ids[-1] == IN_FLIGHT_TOKEN
        self.output_token_ids[-1] = token_id
        if self.token_counts is not None:
            self.token_counts[token_id] = self.token_counts.get(token_id, 0) + 1
        if self.grammar is not None:
            self.grammar.accept(token_id)
        num_output = len(self.output_token_ids)
        if num_output > params.min_tokens and token_id in self.stop_ids:
            self.finish_reason = "stop"
            if params.ignore_eos or token_id not in self.eos_token_ids:
                self.stop_reason = token_id
        elif self.grammar is not None and self.grammar.is_complete:
            self.finish_reason = "stop"
        elif num_output >= params.max_tokens:
            self.finish_reason = "length"
        return self.finish_reason

    def prompt_logprob_positions(self, start: int, stop: int) -> range:
        """The positions in [start, stop) whose logits are still needed for prompt log-probabilities.

        Position p tells the log-probability of prompt token p + 1. Empty if none were asked for; a prefill
        that is repeated after a preemption asks only for what is missing.
        """
        if self.sampling_params.prompt_logprobs is None:
            return range(0)
        first = max(start, len(self.prompt_logprobs) - 1)
        return range(first, max(first, min(stop, self.num_prompt_tokens - 1)))
