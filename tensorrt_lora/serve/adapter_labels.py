"""What metrics call an adapter: its name, for a bounded number of them.

Owns the bound: every label is a time series for ever, and names come from clients. Used in the event loop.
"""

from collections.abc import Iterable

BASE = "_base"
OTHER = "_other"
UNKNOWN = ""
"""No adapter's name begins like the first two; the last is for requests that end before their adapter is known."""


class AdapterLabels:
    """Gives `limit` adapters a label of their own: the configured ones first, then others as they come; the rest share
    `OTHER`. A name keeps its label after its adapter is unloaded."""

    def __init__(self, configured: Iterable[str], *, limit: int) -> None:
        self._limit = limit
        self._known = set(list(configured)[:limit])

    def of(self, name: str | None) -> str:
        """The label of an adapter, or of the base model for None."""
        if name is None:
            return BASE
        if name not in self._known:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(name)
        return name
