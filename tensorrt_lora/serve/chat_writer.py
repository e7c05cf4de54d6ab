"""Answers of /v1/chat/completions."""

from collections.abc import Iterator, Sequence

from tensorrt_lora.llmapi.request_output import CompletionOutput
from tensorrt_lora.sampling_params import Logprob
from tensorrt_lora.serve.answer_writer import AnswerWriter, JsonObject
from tensorrt_lora.serve.completion_writer import most_likely
from tensorrt_lora.serve.token_text import TokenText


class ChatWriter(AnswerWriter):
    """Choices as the assistant's messages. `top` is as in `CompletionWriter`."""

    id_prefix = "chatcmpl"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(
        self, tokens: TokenText, *, top: int | None, model: str, num_choices: int, includes_usage: bool
    ) -> None:
        super().__init__(model=model, num_choices=num_choices, includes_usage=includes_usage)
        self._tokens = tokens
        self._top = top

    def opening(self, num_prompts: int) -> Iterator[JsonObject]:
        for index in range(num_prompts * self._num_choices):
            delta = {"role": "assistant", "content": ""}
            yield self.chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def choice(self, index: int, output: CompletionOutput) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": output.text, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(output.token_ids, output.logprobs),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }

    def delta(self, index: int, output: CompletionOutput) -> JsonObject:
        return {
            "index": index,
            "delta": {"content": output.text_diff} if output.text_diff else {},
            "logprobs": self._logprobs(output.token_ids_diff, output.logprobs_diff),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }

    def _logprobs(self, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]] | None) -> JsonObject | None:
        if logprobs is None:
            return None
        content = []
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            tops = [self._token(one, value) for one, value in most_likely(entry, self._top or 0)]
            content.append({**self._token(token_id, entry[token_id]), "top_logprobs": tops})
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, value: Logprob) -> JsonObject:
        return {"token": self._tokens.text(token_id), "logprob": value.logprob, "bytes": self._tokens.utf8(token_id)}
