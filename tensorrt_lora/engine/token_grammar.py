"""Which tokens may come next in one sequence whose form is prescribed.

Made by `GuidedDecoder`, one for each sequence; asked by the sampler, moved on by `LlmRequest`. Raises nothing: what
goes wrong is in `error`, and ends the one request.
"""

from typing import Protocol


class Matcher(Protocol):
    """What is used of llguidance's `LLMatcher`."""

    def compute_bitmask(self) -> bytes: ...

    def consume_token(self, sampled_token: int) -> bool: ...

    def deep_copy(self) -> "Matcher": ...

    def get_error(self) -> str: ...

    def is_error(self) -> bool: ...

    def is_stopped(self) -> bool: ...


class TokenGrammar:
    """The state after the tokens that came so far."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow what came."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str | None:
        """Why the form cannot be followed (any further), in one line; None if it can."""
        if not self._matcher.is_error():
            return None
        return self._matcher.get_error().partition("\n")[0] or "it is too complex"

    def copy(self) -> "TokenGrammar":
        """The same state, to go on by itself."""
        return TokenGrammar(self._matcher.deep_copy())

    def bitmask(self) -> bytes:
        """A bit for each token id, the lowest bit of the first byte first, in whole 32-bit words; 1 is allowed."""
        return self._matcher.compute_bitmask()

    def accept(self, token_id: int) -> None:
        """Take the next token."""
        if not self._matcher.is_error():
            self._matcher.consume_token(token_id)
