"""How the tokens of one request are chosen, and when it ends.

Owns the per-request sampling settings and the shape of a returned log-probability. Passed to `LLM.generate`
by users, read by the engine's sampler and scheduler. Knows nothing of models or batches.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tensorrt_lora.config.guided_decoding_params import GuidedDecodingParams
from tensorrt_lora.config.strict_base_model import StrictBaseModel


@dataclass(slots=True)
class Logprob:
    """Natural-log probability of a token, and its 1-based rank in the vocabulary where it was computed."""

    logprob: float
    rank: int | None = None


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class SamplingParams(StrictBaseModel):
    """How one request is sampled; greedy by default. Raises ValueError (pydantic's) for wrong values."""

    max_tokens: int = Field(default=32, ge=1, description="Most tokens to generate for each sequence.")
    min_tokens: int = Field(
        default=0, ge=0, description="Tokens to generate before an end or stop token may end the sequence."
    )
    temperature: float = Field(
        default=0.0,
        ge=0.0,
        description="Divides the logits; 0 takes the most likely token every time (greedy).",
    )
    top_k: int = Field(default=0, ge=0, description="Keep the k most likely tokens; 0 keeps all.")
    top_p: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="Keep the smallest set of likely tokens whose probability reaches this sum.",
    )
    min_p: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Drop tokens less likely than this share of the most likely one's probability.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="Makes this request's draws repeatable, whatever runs beside it; None draws one.",
    )
    n: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Sequences to generate for the prompt; more than one needs temperature > 0.",
    )
    stop: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        default_factory=list, description="Texts that end a sequence; left out of the returned text."
    )
    stop_token_ids: list[int] = Field(
        default_factory=list, description="Token ids that end a sequence, beside the model's own end tokens."
    )
    ignore_eos: bool = Field(default=False, description="Go on to max_tokens past the model's own end tokens.")
    repetition_penalty: float = Field(
        default=1.0,
        # Wide enough to ban or to force a token; beyond, a float32 logit could overflow to infinity.
        ge=0.01,
        le=100.0,
        description="Divides positive and multiplies negative logits of tokens seen in prompt or output.",
    )
    presence_penalty: float = Field(
        default=0.0,
        ge=-2.0,
        le=2.0,
        description="Subtracted once from the logit of every token generated so far.",
    )
    frequency_penalty: float = Field(
        default=0.0,
        ge=-2.0,
        le=2.0,
        description="Subtracted from a token's logit for each time it was generated.",
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        description="Return the log-probability of each generated token and of this many most likely "
        "ones; 0 gives the generated token's own, None nothing.",
    )
    prompt_logprobs: int | None = Field(
        default=None,
        ge=0,
        description="The same for the tokens of the prompt; such a prompt takes nothing from the reuse cache.",
    )
    skip_special_tokens: bool = Field(default=True, description="Leave special tokens out of the returned text.")
    guided_decoding: GuidedDecodingParams | None = Field(
        default=None,
        description="The form that the text must have; needs TorchLlmArgs.guided_decoding_backend. It ends where the "
        "form is complete, or cut off at max_tokens.",
    )

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: list[str]) -> list[str]:
        if "" in stop:
            raise ValueError("stop holds an empty text, which would end every sequence at once: remove it")
        return stop

    @field_validator("stop_token_ids")
    @classmethod
    def _check_stop_token_ids(cls, stop_token_ids: list[int]) -> list[int]:
        negative = [token_id for token_id in stop_token_ids if token_id < 0]
        if negative:
            raise ValueError(f"stop_token_ids holds {negative[0]}: token ids start at 0")
        return stop_token_ids

    @model_validator(mode="after")
    def _check_together(self) -> "SamplingParams":
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}: lower it or raise max_tokens"
            )
        if self.guided_decoding is not None and (self.min_tokens > 0 or self.ignore_eos):
            raise ValueError("guided_decoding says when a sequence ends: leave out min_tokens and ignore_eos")
        if self.n > 1 and self.is_greedy:
            raise ValueError(f"n={self.n} with temperature=0 gives {self.n} equal answers: set temperature > 0 or n=1")
        return self

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is taken every time."""
        return self.temperature == 0.0
