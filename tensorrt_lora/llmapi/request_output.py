"""What a user gets back: one `RequestOutput` per prompt, one `CompletionOutput` per sequence.

Plain data by TensorRT-LLM's names, made by `output_builder`. While a request streams, each snapshot is an
object of its own and says what is new in it.
"""

from dataclasses import dataclass

from tensorrt_lora.adapters.adapter_error import AdapterErrorKind
from tensorrt_lora.engine.generation_request import FinishReason
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tensorrt_lora.sampling_params import Logprob


class RequestError(ValueError):
    """One request was refused or failed; others and the engine go on.

    Attributes:
        adapter_error_kind: as in `AdapterError.kind`, where the adapter was at fault.
    """

    def __init__(self, message: str, adapter_error_kind: AdapterErrorKind | None = None) -> None:
        super().__init__(message, adapter_error_kind)
        self.adapter_error_kind = adapter_error_kind

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request: its prompt, all its sequences, and the part of the prompt that was cached."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence, as far as it has come.

    Attributes:
        index: 0 .. n-1.
        text: without the stop string or stop token that ended it; "" when the LLM has no tokenizer.
        token_ids: up to and including the token that ended the sequence.
        cumulative_logprob: sum over `token_ids`; None unless `SamplingParams.logprobs` was set.
        logprobs: one dict per token of `token_ids`, from token id to `Logprob`, the token's own among them.
        finish_reason: None while more is to come, then "stop", "length", "abort" or "error".
        stop_reason: the stop string or stop token id that ended it; None for the model's own end tokens.
        seen_chars, seen_tokens: what the previous snapshot of the same stream already had.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    seen_chars: int = 0
    seen_tokens: int = 0

    @property
    def text_diff(self) -> str:
        """The text that the previous snapshot did not have."""
        return self.text[self.seen_chars :]

    @property
    def token_ids_diff(self) -> list[int]:
        """The tokens that the previous snapshot did not have."""
        return self.token_ids[self.seen_tokens :]

    @property
    def logprobs_diff(self) -> list[dict[int, Logprob]] | None:
        """`logprobs` of the tokens that the previous snapshot did not have."""
        return None if self.logprobs is None else self.logprobs[self.seen_tokens :]


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt, as far as it has come.

    Attributes:
        prompt: the text as given, or as rendered by the chat template; None for a prompt of token ids.
        prompt_logprobs: one dict per prompt token, None for the first; None unless asked for.
        finished: no snapshot follows.
        lora_request: the adapter, or the combination, it ran with; None for the base model.
        error: why the request failed; every completion then has finish reason "error".
        adapter_error_kind: as in `AdapterError.kind`, where the adapter was at fault.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    finished: bool = False
    lora_request: LoRARequest | WeightedLoRARequests | None = None
    error: str | None = None
    adapter_error_kind: AdapterErrorKind | None = None
