"""How far a benchmark has got, on the error stream: a bar, a count, the time, and what it just did."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def bench_progress(*, enabled: bool) -> Progress:
    """A bar whose tasks have a field `detail`; shows nothing unless enabled."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=Console(stderr=True),
        disable=not enabled,
    )
