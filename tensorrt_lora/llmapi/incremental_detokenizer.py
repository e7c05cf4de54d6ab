"""Turns token ids into text while they arrive, without ever giving out half a character.

One per sequence, called by `completion_builder`. A token's text depends on the tokens before it (a leading
space, the rest of a UTF-8 character), so a window of a few tokens is decoded with and without the new ones:
the difference is the new text. Knows nothing of stop strings.
"""

from tensorrt_lora.llmapi.tokenizer import Tokenizer

_PROMPT_TOKENS = 8
_REPLACEMENT = "\ufffd"
# A character has at most 4 bytes, and a token at least one: text that is incomplete for this many calls is
# broken for good, and an ever growing window would cost quadratic time.
_MAX_STALLED_CALLS = 16


class IncrementalDetokenizer:
    """Text of one sequence. The window is a context whose text is out, then tokens whose text is not."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._window = self._visible(prompt_token_ids[-_PROMPT_TOKENS:])
        self._num_context = len(self._window)
        # Characters of the window that are out. Counted with the first token: only then has the engine accepted the
        # prompt, whose ids a tokenizer may not even know.
        self._num_out = -1
        self._num_stalled_calls = 0

    def append(self, token_ids: list[int]) -> str:
        """The text that `token_ids` make final; the rest of it comes with later calls, or with `flush`."""
        if self._num_out < 0:
            self._num_out = len(self._tokenizer.decode(self._window))
        self._window += self._visible(token_ids)
        text = self._tokenizer.decode(self._window)
        # The replacement character stands for bytes whose character is not complete yet.
        complete = text.rstrip(_REPLACEMENT)
        give_up = self._num_stalled_calls == _MAX_STALLED_CALLS
        new = text[self._num_out :] if give_up else complete[self._num_out :]
        if give_up or (new and complete == text):
            self._window = self._window[self._num_context :]
            self._num_context = len(self._window)
            self._num_out = len(self._tokenizer.decode(self._window))
            self._num_stalled_calls = 0
        else:
            self._num_out += len(new)
            self._num_stalled_calls += 1
        return new

    def flush(self) -> str:
        """What was held back, replacement characters included. Call once, at the end."""
        return self._tokenizer.decode(self._window)[self._num_out :] if self._num_out >= 0 else ""

    def _visible(self, token_ids: list[int]) -> list[int]:
        # Skipped here rather than by the decoder: a window of skipped tokens alone would be no context.
        return [token_id for token_id in token_ids if token_id not in self._skipped]
