"""The body of POST /v1/completions."""

from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from tensorrt_lora.serve.sampling_fields import MAX_TOP_LOGPROBS, SamplingFields

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionBody(SamplingFields):
    """Prompts to continue as they are."""

    prompt: str | list[int] | list[str] | list[list[int]] = Field(
        description="A text, a list of token ids, or a list of either: one answer, in order, for each."
    )
    logprobs: int | None = Field(
        default=None, ge=0, le=MAX_TOP_LOGPROBS, description="Tell the log-probability of each token and of this many."
    )
    echo: bool | None = Field(default=None, description="Not served: must be false.")
    best_of: int | None = Field(default=None, ge=1, description="Not served: must equal n.")
    suffix: str | None = Field(default=None, description="Not served: must be empty.")

    default_max_tokens: ClassVar[int | None] = _DEFAULT_MAX_TOKENS

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: str | list[int] | list[str] | list[list[int]]) -> object:
        if not prompt or (isinstance(prompt, list) and not all(one or isinstance(one, int) for one in prompt)):
            raise ValueError("the prompt is empty: give at least one token")
        return prompt

    @model_validator(mode="after")
    def _check_unserved(self) -> "CompletionBody":
        if self.echo:
            raise ValueError("echo is not served: put prompt and answer together yourself")
        if self.best_of is not None and self.best_of != self.num_choices:
            raise ValueError("best_of other than n is not served: ask for n choices, and choose among them")
        if self.suffix:
            raise ValueError("suffix is not served: leave it out")
        return self

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, in order."""
        if isinstance(self.prompt, list) and not all(isinstance(one, int) for one in self.prompt):
            return [one for one in self.prompt if isinstance(one, (str, list))]
        return [self.prompt]  # type: ignore[list-item]  # one text, or token ids
