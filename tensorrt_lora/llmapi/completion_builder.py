"""Builds one `CompletionOutput` from what the engine sends for one sequence.

Owns the text side of a sequence: detokenisation, stop strings, and the cut where it ends. Called by
`output_builder`, by one thread at a time. Knows nothing of the request's other sequences.
"""

from tensorrt_lora.engine.generation_request import FinishReason, GenerationResponse
from tensorrt_lora.llmapi.incremental_detokenizer import IncrementalDetokenizer
from tensorrt_lora.llmapi.request_output import CompletionOutput
from tensorrt_lora.llmapi.stop_string_matcher import StopStringMatcher
from tensorrt_lora.sampling_params import Logprob, SamplingParams


class CompletionBuilder:
    """The state of one sequence. Once it has finished nothing is added; late tokens are dropped.

    With `incremental` off and without stop strings, text is made once, at the end, which is cheaper.
    """

    def __init__(
        self,
        *,
        index: int,
        params: SamplingParams,
        detokenizer: IncrementalDetokenizer | None,
        incremental: bool,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.engine_finished = False
        self._index = index
        self._min_tokens = params.min_tokens
        self._detokenizer = detokenizer
        self._incremental = incremental or bool(params.stop)
        self._matcher = StopStringMatcher(params.stop)
        self._text = ""
        self._undecoded: list[int] = []
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._cumulative_logprob = 0.0
        self._stop_reason: int | str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    def append(self, response: GenerationResponse) -> None:
        """Take the new tokens, and the end if it has come."""
        self.engine_finished |= response.finish_reason is not None
        if self.finish_reason is not None:
            return
        # A stop token ends the text before itself, as a stop string does. The model's own end tokens have no
        # stop reason: they are special tokens, and shown or skipped as those are.
        is_stop_token = response.finish_reason == "stop" and response.stop_reason is not None
        num_shown = len(response.token_ids) - (1 if is_stop_token else 0)
        for position, token_id in enumerate(response.token_ids):
            self._token_ids.append(token_id)
            if self._logprobs is not None and response.logprobs is not None:
                self._logprobs.append(response.logprobs[position])
                self._cumulative_logprob += response.logprobs[position][token_id].logprob
            if position < num_shown:
                self._undecoded.append(token_id)
                if self._incremental and self._decode():
                    return
        if response.finish_reason is not None:
            self.finish(response.finish_reason, response.stop_reason)

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End the sequence where it is, unless it has ended already."""
        if self.finish_reason is not None or self._decode():
            return
        if self._detokenizer is not None:
            self._text += self._detokenizer.flush()
        self.finish_reason = reason
        self._stop_reason = stop_reason

    def snapshot(self, *, seen_chars: int = 0, seen_tokens: int = 0) -> CompletionOutput:
        """The sequence as of now, without text that may still turn out to be a stop string."""
        num_held = 0 if self.finish_reason is not None else self._matcher.num_held(self._text)
        has_logprobs = self._logprobs is not None
        return CompletionOutput(
            index=self._index,
            text=self._text[: len(self._text) - num_held],
            token_ids=list(self._token_ids),
            cumulative_logprob=self._cumulative_logprob if has_logprobs else None,
            logprobs=list(self._logprobs) if self._logprobs is not None else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            seen_chars=seen_chars,
            seen_tokens=seen_tokens,
        )

    def _decode(self) -> bool:
        """Add the text of undecoded tokens; True when it completes a stop string, which ends the sequence."""
        if self._detokenizer is None or not self._undecoded:
            return False
        new = self._detokenizer.append(self._undecoded)
        self._undecoded.clear()
        self._text += new
        # The engine's rule for stop tokens: the first `min_tokens` tokens do not end a sequence.
        match = self._matcher.find(self._text, len(new)) if self.num_tokens > self._min_tokens else None
        if match is None:
            return False
        start, self._stop_reason = match
        self._text = self._text[:start]
        self.finish_reason = "stop"
        return True
