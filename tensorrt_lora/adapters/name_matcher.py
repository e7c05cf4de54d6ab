"""Regular expressions out of adapter files, kept from hanging the loader.

Owns the bounds on them. A pattern like `(a|a)*b` takes time exponential in the name; whoever wrote the adapter chose
both. So patterns have a length, and all matches of one adapter share a budget of processor time. Asked by `PeftConfig`.
"""

import re
import time
from functools import lru_cache

import regex  # type: ignore[import-untyped]

MAX_PATTERN_LENGTH = 10_000
MAX_PATTERNS = 10_000
MATCH_SECONDS = 2.0
_SLICE_SECONDS = 0.005  # with the interpreter lock held; what takes longer starts again without it


class SlowPatternError(ValueError):
    """The matches of one adapter's patterns took too long."""


class NameMatcher:
    """Matches names against patterns, as Python's `re` does, until `seconds` are used up."""

    def __init__(self, seconds: float = MATCH_SECONDS) -> None:
        self._left = seconds

    def fullmatch(self, pattern: str, name: str) -> bool:
        """Whether `pattern` matches the whole of `name`. Raises SlowPatternError."""
        return self._run(pattern, name, whole=True) is not None

    def match(self, pattern: str, name: str) -> "regex.Match[str] | None":
        """What `pattern` matches from the start of `name` on. Raises SlowPatternError."""
        return self._run(pattern, name, whole=False)

    def matches_end(self, pattern: str, name: str) -> bool:
        """Whether `pattern` matches the end of `name`, from its start or a dot on. Raises SlowPatternError."""
        # Some adapters have an entry for each of hundreds of modules; plain names need no engine.
        if _is_plain(pattern) and "\n" not in name:
            return _ends_in(pattern, name)
        return self.match(name_end(pattern), name) is not None

    def _run(self, pattern: str, name: str, *, whole: bool) -> "regex.Match[str] | None":
        compiled = _compile(pattern)
        run = compiled.fullmatch if whole else compiled.match
        is_first = True
        while self._left > 0:
            start = time.thread_time()
            try:
                return run(name, timeout=_SLICE_SECONDS if is_first else self._left, concurrent=not is_first)
            except TimeoutError:  # by the time of all threads of the process together; only this one's counts
                is_first = False
            finally:
                self._left -= time.thread_time() - start
        raise SlowPatternError(
            f"the pattern {_shorten(pattern)} takes too long to match names like {_shorten(name)}: it can match in "
            "very many ways; simplify it"
        )


def name_end(pattern: str) -> str:
    """The expression by which PEFT applies an entry of `rank_pattern` or `alpha_pattern`."""
    return rf"(.*\.)?({pattern})$"


def pattern_problem(pattern: str, expression: str) -> str | None:
    """What `pattern` must be to be used inside `expression`; None if it is fine."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        return f"at most {MAX_PATTERN_LENGTH} characters long, it has {len(pattern)}"
    try:
        _compile(expression)
        if not _is_plain(pattern):
            re.compile(expression)  # PEFT must take it too; `regex` knows more, such as two groups of one name
    except (re.error, regex.error, OverflowError, RecursionError, ValueError) as error:
        return f"a regular expression ({error})"
    return None


@lru_cache(maxsize=1024)
def _compile(expression: str) -> "regex.Pattern[str]":
    # Version 0 is the syntax and the meaning of `re`, which PEFT uses.
    return regex.compile(expression, regex.VERSION0)


@lru_cache(maxsize=MAX_PATTERNS)
def _is_plain(pattern: str) -> bool:
    """Whether it is a dotted name, which means itself but for the dots: they stand for any character."""
    return pattern.replace(".", "").replace("_", "").isalnum()


def _ends_in(pattern: str, name: str) -> bool:
    start = len(name) - len(pattern)
    if start < 0 or (start > 0 and name[start - 1] != "."):
        return False
    end = name[start:]
    return end == pattern or all(ours in (theirs, ".") for ours, theirs in zip(pattern, end, strict=True))


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
