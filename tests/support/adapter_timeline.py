"""What a name stood for, and when, as far as a client of a server can tell."""

from dataclasses import dataclass, field
from time import perf_counter


@dataclass
class AdapterTimeline:
    """Contents of one name, one after the other; None is nothing. A change happens between its request and the answer.

    Attributes:
        first: what it stands for from the start.
        changes: (content, asked for at, answered at), in order.
    """

    first: str | None
    changes: list[tuple[str | None, float, float]] = field(default_factory=list)

    def begin(self, content: str | None) -> None:
        """A change is asked for now."""
        self.changes.append((content, perf_counter(), float("inf")))

    def end(self) -> None:
        """It has been answered."""
        content, begun, _ = self.changes[-1]
        self.changes[-1] = (content, begun, perf_counter())

    def possible(self, start: float, end: float) -> set[str | None]:
        """What a request that was bound to its adapter between `start` and `end` may have got."""
        contents = [(self.first, float("-inf")), *((content, begun) for content, begun, _ in self.changes)]
        last_moments = [*(answered for _, _, answered in self.changes), float("inf")]
        return {
            content
            for (content, begun), last in zip(contents, last_moments, strict=True)
            if begun <= end and start <= last
        }
