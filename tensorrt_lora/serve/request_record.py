"""What happened to one request, for whoever counts.

Filled in while a request runs; handed to a `RequestObserver`. Plain data: who observes decides what becomes a metric.
"""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request that generates.

    Attributes:
        endpoint: "completions" or "chat_completions".
        adapter: the adapter's name, None for the base model or while it is not known yet.
        received_at, submitted_at, first_token_at, last_token_at, finished_at: `time.perf_counter` seconds, None until
            then. Tokens are seen one by one in streams only: otherwise both times are the end.
        prompt_tokens, cached_tokens, completion_tokens: over all prompts and choices.
        outcome: "ok", "abort" (its client went away), "timeout", "refused" (4xx) or "error" (503, a broken stream).
    """

    endpoint: str
    streams: bool
    adapter: str | None = None
    received_at: float = field(default_factory=perf_counter)
    submitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    finished_at: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    outcome: str = "abort"


class RequestObserver(Protocol):
    """Told in the event loop, so it must not block."""

    def on_start(self, record: RequestRecord) -> None:
        """A request has come in."""

    def on_tokens(self, record: RequestRecord, num_new: int, seconds: float | None) -> None:
        """A stream has `num_new` more tokens, `seconds` after the last ones; None for the first ones."""

    def on_finish(self, record: RequestRecord) -> None:
        """A request has ended, with what `record.outcome` says."""


class NullObserver:
    """Observes nothing."""

    def on_start(self, record: RequestRecord) -> None: ...

    def on_tokens(self, record: RequestRecord, num_new: int, seconds: float | None) -> None: ...

    def on_finish(self, record: RequestRecord) -> None: ...
