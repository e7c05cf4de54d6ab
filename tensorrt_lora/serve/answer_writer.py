"""What answers of both endpoints have in common: ids, usage, choices with their indices, chunks of a stream.

Owns the JSON around a choice; `CompletionWriter` and `ChatWriter` own the choice. One writer for each HTTP request.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tensorrt_lora.llmapi.request_output import CompletionOutput, RequestOutput

JsonObject: TypeAlias = dict[str, object]


class AnswerWriter(ABC):
    """Writes one answer, whole or in chunks.

    Args:
        model: what the client called the model.
        num_choices: choices for each prompt; those of prompt i are i * num_choices and up.
        includes_usage: whether the stream ends with the tokens counted.
    """

    id_prefix: str
    object_name: str
    chunk_name: str

    def __init__(self, *, model: str, num_choices: int, includes_usage: bool) -> None:
        self._head: JsonObject = {
            "id": f"{self.id_prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._num_choices = num_choices
        self._includes_usage = includes_usage
        self._finished: set[int] = set()

    @abstractmethod
    def choice(self, index: int, output: CompletionOutput) -> JsonObject:
        """A whole choice."""

    @abstractmethod
    def delta(self, index: int, output: CompletionOutput) -> JsonObject:
        """What is new in a choice."""

    def opening(self, num_prompts: int) -> Iterator[JsonObject]:
        """The chunks before all others."""
        yield from ()

    def whole(self, outputs: Sequence[RequestOutput]) -> JsonObject:
        """The answer to all prompts, in order."""
        choices = [
            self.choice(prompt_index * self._num_choices + one.index, one)
            for prompt_index, output in enumerate(outputs)
            for one in output.outputs
        ]
        return {**self._head, "object": self.object_name, "choices": choices, "usage": _usage(outputs)}

    def chunks(self, prompt_index: int, output: RequestOutput) -> Iterator[JsonObject]:
        """What is new in a snapshot, a chunk for each choice that has news."""
        for one in output.outputs:
            index = prompt_index * self._num_choices + one.index
            if index in self._finished:
                continue
            if one.finish_reason is not None:
                self._finished.add(index)
            elif not one.text_diff and not one.logprobs_diff:
                continue
            yield self.chunk([self.delta(index, one)])

    def closing(self, outputs: Sequence[RequestOutput]) -> Iterator[JsonObject]:
        """The chunks after all others."""
        if self._includes_usage:
            yield {**self.chunk([]), "usage": _usage(outputs)}

    def chunk(self, choices: list[JsonObject]) -> JsonObject:
        chunk: JsonObject = {**self._head, "object": self.chunk_name, "choices": choices}
        if self._includes_usage:
            chunk["usage"] = None
        return chunk


def _usage(outputs: Sequence[RequestOutput]) -> JsonObject:
    prompt = sum(output.usage.prompt_tokens for output in outputs)
    completion = sum(output.usage.completion_tokens for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(output.usage.cached_tokens for output in outputs)},
    }
