"""The body of POST /v1/chat/completions."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from tensorrt_lora.config.strict_base_model import StrictBaseModel
from tensorrt_lora.serve.sampling_fields import MAX_TOP_LOGPROBS, SamplingFields


class TextPart(StrictBaseModel):
    """A piece of a message. Only text is served."""

    type: Literal["text"]
    text: str


class ChatMessage(StrictBaseModel):
    """One message. The null fields are what clients send back of an answer of ours."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="developer is passed to the chat template as system."
    )
    content: str | list[TextPart] = Field(description="Text; parts are joined.")
    name: str | None = Field(default=None, description="Passed to the chat template.")
    reasoning_content: str | None = Field(default=None, description="Passed to the chat template.")
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[JsonValue], Field(max_length=0)] | None = Field(
        default=None, description="Not served: must be empty."
    )
    annotations: Annotated[list[JsonValue], Field(max_length=0)] | None = None

    def for_template(self) -> dict[str, object]:
        """The message as chat templates know it."""
        role = "system" if self.role == "developer" else self.role
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        fields = {"role": role, "content": text, "name": self.name, "reasoning_content": self.reasoning_content}
        return {key: value for key, value in fields.items() if value is not None}


class ChatCompletionBody(SamplingFields):
    """A conversation to continue, by the base model's chat template."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)] = Field(description="The conversation so far.")
    max_completion_tokens: int | None = Field(default=None, ge=1, description="OpenAI's newer name of max_tokens.")
    logprobs: bool | None = Field(default=None, description="Tell the log-probability of each token.")
    top_logprobs: int | None = Field(
        default=None, ge=0, le=MAX_TOP_LOGPROBS, description="And of this many likely tokens; needs logprobs."
    )
    chat_template_kwargs: dict[str, JsonValue] | None = Field(
        default=None, description="Further variables of the chat template, such as enable_thinking."
    )
    add_generation_prompt: bool | None = Field(default=None, description="Begin the assistant's turn; default true.")
    tools: Annotated[list[JsonValue], Field(max_length=0)] | None = Field(
        default=None, description="Not served: must be empty."
    )
    tool_choice: Literal["none", "auto"] | None = Field(default=None, description="There are no tools to choose from.")
    parallel_tool_calls: bool | None = Field(default=None, description="There are no tools to call.")
    modalities: list[Literal["text"]] | None = Field(default=None, description="Text alone is served.")

    @model_validator(mode="after")
    def _check_together(self) -> "ChatCompletionBody":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs=true")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens are two names of one limit: give one of them")
        return self

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def max_tokens_wanted(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
