"""Single tokens as text, for log-probabilities.

Owns the cache of what has been decoded. Called by the writers, in the event loop.
"""

from tensorrt_lora.llmapi.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class TokenText:
    """The text of a token by itself, which need not be a whole character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        """Bytes that make no character alone are U+FFFD."""
        text = self._known.get(token_id)
        if text is None:
            text = self._known[token_id] = self._tokenizer.decode([token_id])
        return text

    def utf8(self, token_id: int) -> list[int] | None:
        """The token's bytes; None where its text does not tell them."""
        text = self.text(token_id)
        return None if _REPLACEMENT in text else list(text.encode())
