"""What completions and chat completions have in common: how tokens are chosen, how the answer comes, which adapter.

Owns the reading of these fields into `SamplingParams`. Names and ranges are OpenAI's; fields that OpenAI does not have
are vLLM's. Unknown fields are refused; those that are taken without effect say so, and none of them changes an answer.
"""

import json
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, StringConstraints, ValidationError, field_validator

from tensorrt_lora.config.guided_decoding_params import GuidedDecodingParams
from tensorrt_lora.config.strict_base_model import StrictBaseModel
from tensorrt_lora.config.validation_message import describe_validation_error
from tensorrt_lora.sampling_params import SamplingParams
from tensorrt_lora.serve.api_error import ApiError

MAX_TOP_LOGPROBS = 20
_MAX_MESSAGE = 500  # characters; what a client sent is part of it

StopText = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_IGNORED = "Taken, and without effect."


class StreamOptions(StrictBaseModel):
    """How a stream is sent."""

    include_usage: bool | None = Field(default=None, description="Send a last chunk with the tokens counted.")
    include_obfuscation: bool | None = Field(default=None, description="Taken; no padding is ever sent.")


class LoraRequestBody(StrictBaseModel):
    """TensorRT-LLM's way to name an adapter, beside `model`."""

    lora_name: str | None = Field(
        default=None, description="An adapter's name, as /v1/models lists it or the root directory has it."
    )
    lora_path: str | None = Field(
        default=None, description="An adapter's directory, inside the server's lora_root; it decides what is loaded."
    )
    lora_int_id: int | None = Field(
        default=None, description="Taken, and without effect: the server gives each adapter an id of its own."
    )


class JsonSchemaBody(StrictBaseModel):
    """A schema and its name."""

    name: str | None = Field(default=None, description="Taken, and without effect.")
    description: str | None = Field(default=None, description="Taken, and without effect.")
    strict: bool | None = Field(default=None, description="Taken: every answer follows the schema.")
    json_schema: dict[str, JsonValue] = Field(alias="schema", description="A JSON Schema.")


class TextFormat(StrictBaseModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(StrictBaseModel):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(StrictBaseModel):
    """JSON by a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaBody


class SamplingFields(StrictBaseModel):
    """Fields of both endpoints; null means the default everywhere."""

    model: str = Field(description="The base model's name, or an adapter's.")
    lora_request: LoraRequestBody | None = Field(default=None, description="An adapter, where `model` is the base.")
    max_tokens: int | None = Field(default=None, ge=1, description="Most tokens to generate for each choice.")
    temperature: float | None = Field(default=None, ge=0.0, le=2.0, description="0 is greedy; default 1.")
    top_p: float | None = Field(default=None, gt=0.0, le=1.0, description="Nucleus sampling; default 1.")
    n: int | None = Field(default=None, ge=1, le=128, description="Choices for each prompt; default 1.")
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="Makes the draws repeatable.")
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = Field(
        default=None, description="Texts that end a choice, and are left out of it."
    )
    presence_penalty: float | None = Field(default=None, ge=-2.0, le=2.0, description="As OpenAI's; default 0.")
    frequency_penalty: float | None = Field(default=None, ge=-2.0, le=2.0, description="As OpenAI's; default 0.")
    stream: bool | None = Field(default=None, description="Send the answer as server-sent events while it grows.")
    stream_options: StreamOptions | None = Field(default=None, description="For streams only.")
    top_k: int | None = Field(default=None, ge=-1, description="Keep the k most likely tokens; 0 and -1 keep all.")
    min_p: float | None = Field(default=None, ge=0.0, le=1.0, description="Drop tokens less likely than this share.")
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100.0, description="Over prompt and output.")
    min_tokens: int | None = Field(default=None, ge=0, description="Tokens before an end token may come.")
    stop_token_ids: Annotated[list[int], Field(max_length=64)] | None = Field(
        default=None, description="Token ids that end a choice."
    )
    ignore_eos: bool | None = Field(default=None, description="Go on past the model's end tokens.")
    skip_special_tokens: bool | None = Field(default=None, description="Leave special tokens out; default true.")
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = Field(
        default=None, discriminator="type", description="The form of the answer; default text."
    )
    logit_bias: dict[str, float] | None = Field(default=None, description="Not served: must be empty.")
    user: JsonValue = Field(default=None, description=_IGNORED)
    metadata: JsonValue = Field(default=None, description=_IGNORED)
    store: JsonValue = Field(default=None, description=_IGNORED)
    service_tier: JsonValue = Field(default=None, description=_IGNORED)
    safety_identifier: JsonValue = Field(default=None, description=_IGNORED)
    prompt_cache_key: JsonValue = Field(default=None, description=_IGNORED)

    default_max_tokens: ClassVar[int | None] = None
    """Tokens where the request names no number; None is whatever fits."""

    @field_validator("logit_bias")
    @classmethod
    def _check_logit_bias(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        if value:
            raise ValueError("logit_bias is not served: leave it out")
        return value

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def num_choices(self) -> int:
        """Choices for each prompt."""
        return self.n or 1

    @property
    def num_logprobs(self) -> int | None:
        """Likely tokens to tell beside each generated one; None tells nothing."""
        raise NotImplementedError

    @property
    def max_tokens_wanted(self) -> int | None:
        """The request's own limit for each choice; None where it leaves that to the server."""
        return self.max_tokens

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_stream(self) -> None:
        """Raise ApiError where the fields of a stream contradict each other."""
        if self.stream_options is not None and not self.streams:
            raise ApiError(400, "stream_options needs stream=true", param="stream_options")

    def sampling_params(self, max_tokens: int) -> SamplingParams:
        """The engine's settings. Raises ApiError for values that contradict each other."""
        fields: dict[str, object] = {
            "max_tokens": max_tokens,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": self.top_p,
            "n": self.n,
            "seed": self.seed,
            "stop": self.stop,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "min_tokens": self.min_tokens,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "logprobs": self.num_logprobs,
        }
        try:
            fields["guided_decoding"] = self._guided_decoding()
            return SamplingParams.model_validate({name: value for name, value in fields.items() if value is not None})
        except ValidationError as error:
            raise ApiError(400, describe_validation_error(error)[:_MAX_MESSAGE], code="invalid_value") from error

    def _guided_decoding(self) -> GuidedDecodingParams | None:
        wanted = self.response_format
        if isinstance(wanted, JsonSchemaFormat):
            return GuidedDecodingParams(json_schema=json.dumps(wanted.json_schema.json_schema))
        return GuidedDecodingParams(json_object=True) if isinstance(wanted, JsonObjectFormat) else None
