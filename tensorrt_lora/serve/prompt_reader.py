"""From the bodies of requests to token ids that fit the engine.

Owns tokenization off the event loop, the chat template, and the limits on tokens. Called by `AnswerService`.
"""

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from tensorrt_lora.llmapi.prompt import PromptDict, read_prompt
from tensorrt_lora.llmapi.tokenizer import Conversation, Tokenizer
from tensorrt_lora.sampling_params import SamplingParams
from tensorrt_lora.serve.api_error import ApiError
from tensorrt_lora.serve.chat_completion_body import ChatCompletionBody
from tensorrt_lora.serve.completion_body import CompletionBody
from tensorrt_lora.serve.sampling_fields import SamplingFields


class PromptEngine(Protocol):
    """What the reader needs of `LLM`."""

    tokenizer: Tokenizer | None

    def chat_prompt(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: dict[str, object] | None = None,
    ) -> PromptDict: ...


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt and how it is to be sampled."""

    prompt: PromptDict
    params: SamplingParams

    @property
    def num_tokens(self) -> int:
        return len(self.prompt["prompt_token_ids"])


class PromptReader:
    """Raises ApiError: 400 for what is no prompt, 422 for one that is too long for what it asks for.

    Args:
        engine: tokenizes.
        max_seq_len: prompt and output tokens together.
        vocab_size: token ids are below this.
        max_prompts, max_output_tokens: limits of `ServeConfig`.
        threads: where tokenization runs.
    """

    def __init__(
        self,
        engine: PromptEngine,
        *,
        max_seq_len: int,
        vocab_size: int,
        max_prompts: int,
        max_output_tokens: int | None,
        threads: Executor,
    ) -> None:
        self._engine = engine
        self._max_seq_len = max_seq_len
        self._vocab_size = vocab_size
        self._max_prompts = max_prompts
        self._max_output_tokens = max_output_tokens
        self._threads = threads

    async def read_completion(self, body: CompletionBody) -> list[ReadPrompt]:
        """A prompt for each of the body's."""
        prompts = body.prompts
        if len(prompts) > self._max_prompts:
            raise ApiError(
                422,
                f"the request holds {len(prompts)} prompts, but this server takes {self._max_prompts}: split it",
                code="too_many_prompts",
                param="prompt",
            )
        loop = asyncio.get_running_loop()
        read = await loop.run_in_executor(self._threads, lambda: [self._tokenize(prompt) for prompt in prompts])
        return [self._fit(prompt, body) for prompt in read]

    async def read_chat(self, body: ChatCompletionBody) -> list[ReadPrompt]:
        """The one prompt of a conversation."""
        prompt = await asyncio.get_running_loop().run_in_executor(self._threads, lambda: self._render(body))
        return [self._fit(prompt, body)]

    def _tokenize(self, prompt: str | list[int]) -> PromptDict:
        if isinstance(prompt, list):
            outside = next((token for token in prompt if not 0 <= token < self._vocab_size), None)
            if outside is not None:
                raise ApiError(
                    400,
                    f"the prompt holds token id {_short(outside)}, but the model's ids are 0 to {self._vocab_size - 1}",
                    code="invalid_token",
                    param="prompt",
                )
        try:
            read = read_prompt(prompt, self._engine.tokenizer)
        except ValueError as error:
            raise ApiError(400, str(error), code="invalid_prompt", param="prompt") from error
        if read.text is None:
            return {"prompt_token_ids": read.token_ids}
        return {"prompt": read.text, "prompt_token_ids": read.token_ids}

    def _render(self, body: ChatCompletionBody) -> PromptDict:
        try:
            return self._engine.chat_prompt(
                [message.for_template() for message in body.messages],
                add_generation_prompt=body.add_generation_prompt is not False,
                chat_template_kwargs=dict(body.chat_template_kwargs or {}),
            )
        except ValueError as error:
            raise ApiError(400, str(error), code="invalid_messages", param="messages") from error

    def _fit(self, prompt: PromptDict, body: SamplingFields) -> ReadPrompt:
        """The prompt with the number of tokens that it may generate."""
        num_prompt = len(prompt["prompt_token_ids"])
        if num_prompt == 0:
            raise ApiError(400, "the prompt is empty: give at least one token", code="invalid_prompt", param="prompt")
        room = self._max_seq_len - num_prompt
        if room < 1:
            raise ApiError(
                422,
                f"the prompt's {num_prompt} tokens leave no room to answer within max_seq_len={self._max_seq_len}: "
                "shorten it",
                code="context_length_exceeded",
                param="prompt",
            )
        most = room if self._max_output_tokens is None else min(room, self._max_output_tokens)
        wanted = body.max_tokens_wanted
        if wanted is not None and wanted > room:
            raise ApiError(
                422,
                f"the prompt's {num_prompt} tokens and max_tokens={_short(wanted)} exceed "
                f"max_seq_len={self._max_seq_len}: shorten the prompt or lower max_tokens",
                code="context_length_exceeded",
                param="max_tokens",
            )
        if wanted is not None and wanted > most:
            raise ApiError(
                422,
                f"max_tokens={wanted} is more than the {most} that this server allows: lower it",
                code="too_many_tokens",
                param="max_tokens",
            )
        default = most if body.default_max_tokens is None else min(most, body.default_max_tokens)
        return ReadPrompt(prompt, body.sampling_params(default if wanted is None else wanted))


def _short(number: int) -> str:
    # Text of a huge int takes time quadratic in its digits, and Python refuses it beyond some thousands.
    return str(number) if abs(number) < 10**18 else "a number of 19 digits or more"
