"""Builds the `RequestOutput` of one request from the engine's responses.

Owns the sequences of a request and what they share. Called by `request_future`, which locks.
"""

from dataclasses import dataclass, field

from tensorrt_lora.adapters.adapter_error import AdapterErrorKind
from tensorrt_lora.engine.generation_request import FinishReason, GenerationRequest, GenerationResponse
from tensorrt_lora.llmapi.completion_builder import CompletionBuilder
from tensorrt_lora.llmapi.incremental_detokenizer import IncrementalDetokenizer
from tensorrt_lora.llmapi.request_output import RequestOutput, Usage
from tensorrt_lora.llmapi.tokenizer import Tokenizer
from tensorrt_lora.sampling_params import Logprob


@dataclass(slots=True)
class StreamPosition:
    """How much of each sequence a stream has shown: (characters, tokens) by sequence index."""

    seen: dict[int, tuple[int, int]] = field(default_factory=dict)


class OutputBuilder:
    """The state of one request."""

    def __init__(
        self, request: GenerationRequest, *, prompt: str | None, tokenizer: Tokenizer | None, streaming: bool
    ) -> None:
        self._request = request
        self._prompt = prompt
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._num_cached_tokens = 0
        self._error: str | None = None
        self._error_kind: AdapterErrorKind | None = None
        params = request.sampling_params
        self._completions = [
            CompletionBuilder(
                index=index,
                params=params,
                detokenizer=_create_detokenizer(request, tokenizer),
                incremental=streaming,
            )
            for index in range(params.n)
        ]

    @property
    def request_id(self) -> int:
        return self._request.request_id

    @property
    def finished(self) -> bool:
        return all(completion.finish_reason is not None for completion in self._completions)

    @property
    def engine_finished(self) -> bool:
        """Whether the engine has ended every sequence; it has not where a stop string did."""
        return all(completion.engine_finished for completion in self._completions)

    def append(self, response: GenerationResponse) -> None:
        """Take news of one sequence. An error of one ends the request; what was generated stays."""
        self._num_cached_tokens = max(self._num_cached_tokens, response.num_cached_tokens)
        if response.prompt_logprobs is not None:
            self._prompt_logprobs = response.prompt_logprobs
        self._completions[response.sequence_index].append(response)
        if response.finish_reason == "error" and self._error is None:
            self._error = response.error or "the engine gave no reason"
            self._error_kind = response.error_kind
            self.finish("error")

    def finish(self, reason: FinishReason) -> None:
        """End the sequences that have not ended."""
        for completion in self._completions:
            completion.finish(reason)

    def snapshot(self, position: StreamPosition | None = None) -> RequestOutput:
        """The answer as of now. With `position`, its diffs start there, and it moves on."""
        seen = position.seen if position is not None else {}
        outputs = []
        for index, completion in enumerate(self._completions):
            seen_chars, seen_tokens = seen.get(index, (0, 0))
            output = completion.snapshot(seen_chars=seen_chars, seen_tokens=seen_tokens)
            seen[index] = (len(output.text), len(output.token_ids))
            outputs.append(output)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            # A copy, as of all that goes out: an engine in this process reads the same list.
            prompt_token_ids=list(self._request.prompt_token_ids),
            outputs=outputs,
            usage=Usage(
                prompt_tokens=len(self._request.prompt_token_ids),
                completion_tokens=sum(completion.num_tokens for completion in self._completions),
                cached_tokens=self._num_cached_tokens,
            ),
            prompt_logprobs=None if self._prompt_logprobs is None else list(self._prompt_logprobs),
            finished=self.finished,
            lora_request=self._request.lora_request,
            error=self._error,
            adapter_error_kind=self._error_kind,
        )


def _create_detokenizer(request: GenerationRequest, tokenizer: Tokenizer | None) -> IncrementalDetokenizer | None:
    if tokenizer is None:
        return None
    return IncrementalDetokenizer(
        tokenizer,
        request.prompt_token_ids,
        skip_special_tokens=request.sampling_params.skip_special_tokens,
    )
