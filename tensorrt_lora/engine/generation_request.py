"""The messages between the front (prompts, text, clients) and the engine (tokens, batches).

Sent by `llmapi/` and answered by `PyExecutor`, across a process boundary or within one process: plain
picklable data, no tensors, no engine state.
"""

from dataclasses import dataclass, field
from typing import Literal

from tensorrt_lora.adapters.adapter_error import AdapterErrorKind
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tensorrt_lora.sampling_params import Logprob, SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True)
class GenerationRequest:
    """A prompt to answer. `sampling_params.n` sequences come back, each in responses of its own."""

    request_id: int
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    lora_request: LoRARequest | WeightedLoRARequests | None = None


@dataclass(slots=True)
class AbortRequest:
    """Ends all sequences of a request at once; each answers with finish reason "abort"."""

    request_id: int


@dataclass(slots=True)
class GenerationResponse:
    """News of one sequence: what came since its last response.

    Attributes:
        request_id: that of the request.
        sequence_index: 0 .. n-1.
        token_ids: the new tokens; the end or stop token that finished the sequence is among them.
        logprobs: one dict per new token, the token itself first; None if not asked for.
        prompt_logprobs: one dict per prompt token, None for the first; sent once, with the first new token.
        finish_reason: None while more is to come.
        stop_reason: the stop token id that ended the sequence; None for the model's own end tokens.
        error: what went wrong, with finish reason "error".
        error_kind: what is wrong with its adapter; None for any other error.
        num_cached_tokens: prompt tokens that were not computed because the cache held them.
    """

    request_id: int
    sequence_index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    error_kind: AdapterErrorKind | None = None
    num_cached_tokens: int = 0
