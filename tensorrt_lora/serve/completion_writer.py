"""Answers of /v1/completions."""

from collections.abc import Sequence

from tensorrt_lora.llmapi.request_output import CompletionOutput
from tensorrt_lora.sampling_params import Logprob
from tensorrt_lora.serve.answer_writer import AnswerWriter, JsonObject
from tensorrt_lora.serve.token_text import TokenText


class CompletionWriter(AnswerWriter):
    """Choices as text. `top` is how many likely tokens each token's log-probability comes with; None tells none."""

    id_prefix = "cmpl"
    object_name = "text_completion"
    chunk_name = "text_completion"

    def __init__(
        self, tokens: TokenText, *, top: int | None, model: str, num_choices: int, includes_usage: bool
    ) -> None:
        super().__init__(model=model, num_choices=num_choices, includes_usage=includes_usage)
        self._tokens = tokens
        self._top = top
        self._offsets: dict[int, int] = {}

    def choice(self, index: int, output: CompletionOutput) -> JsonObject:
        return self._choice(index, output, output.text, output.token_ids, output.logprobs)

    def delta(self, index: int, output: CompletionOutput) -> JsonObject:
        return self._choice(index, output, output.text_diff, output.token_ids_diff, output.logprobs_diff)

    def _choice(
        self,
        index: int,
        output: CompletionOutput,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[dict[int, Logprob]] | None,
    ) -> JsonObject:
        return {
            "index": index,
            "text": text,
            "logprobs": None if logprobs is None else self._logprobs(index, token_ids, logprobs),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }

    def _logprobs(self, index: int, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]]) -> JsonObject:
        texts = [self._tokens.text(token_id) for token_id in token_ids]
        offsets, offset = [], self._offsets.get(index, 0)
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self._offsets[index] = offset
        chosen = [entry[token_id].logprob for token_id, entry in zip(token_ids, logprobs, strict=True)]
        tops = [
            {self._tokens.text(one): value.logprob for one, value in most_likely(entry, self._top or 0)}
            for entry in logprobs
        ]
        return {
            "tokens": texts,
            "token_logprobs": chosen,
            "top_logprobs": tops if self._top else None,
            "text_offset": offsets,
        }


def most_likely(entry: dict[int, Logprob], count: int) -> list[tuple[int, Logprob]]:
    """The `count` most likely tokens of an entry, which may hold the generated one beside them."""
    return sorted(entry.items(), key=lambda item: -item[1].logprob)[:count]
