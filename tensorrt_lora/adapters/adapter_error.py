"""What is wrong with an adapter, all of it at once.

Owns the error that users see and the list that fills it. Every reader in this folder adds to an
`AdapterProblems` and asks it to raise; none knows how the text is put together.
"""

from collections.abc import Sequence
from typing import Literal, NoReturn

AdapterErrorKind = Literal["bad_adapter", "id_conflict", "does_not_fit", "unloaded", "failed"]
"""What a program can do about it: another adapter, another id, more room, load it again, or a look at the log."""


class AdapterError(ValueError):
    """An adapter that cannot be used: its name and path, then every problem with its fix.

    Attributes:
        kind: "bad_adapter": its files are missing, damaged or not servable; "id_conflict": its id stands for another;
            "does_not_fit": memory or slots are too small for it; "unloaded": its id was unloaded; "failed": the disk,
            the memory or the program failed.
    """

    def __init__(self, name: str, path: str, problems: Sequence[str], kind: AdapterErrorKind = "bad_adapter") -> None:
        # ValueError keeps all of them in `args`, so that the error survives pickling between processes.
        super().__init__(name, path, tuple(problems), kind)
        self.name = name
        self.path = path
        self.problems = tuple(problems)
        self.kind = kind

    def __str__(self) -> str:
        head = f"adapter {self.name!r} ({self.path}): "
        if len(self.problems) == 1:
            return head + self.problems[0]
        return head + "\n  - ".join([f"{len(self.problems)} problems", *self.problems])


class AdapterProblems:
    """Collects the problems of one adapter while it is read."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self._problems: list[str] = []

    def add(self, problem: str) -> None:
        self._problems.append(problem)

    def fail(self, problem: str) -> NoReturn:
        """Raise AdapterError now, for a problem that leaves nothing else to look at."""
        self.add(problem)
        raise AdapterError(self.name, self.path, self._problems)

    def check(self) -> None:
        """Raise AdapterError if there is any problem so far."""
        if self._problems:
            raise AdapterError(self.name, self.path, self._problems)
