"""A traced step in words: sums per kernel, and what each LoRA kernel ran beside. On the terminal and as Markdown."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from tensorrt_lora.bench.kernel_kind import kernel_kind, short_name
from tensorrt_lora.bench.kernel_summary import (
    LoraOverlap,
    StepSummary,
    lora_overlaps,
    summarize_step,
    totals_by_name,
)
from tensorrt_lora.bench.kernel_trace import KernelRun

_COLUMNS = ("kernel", "kind", "runs", "us", "adds us", "each", "of the step")


def kernel_table(kernels: Sequence[KernelRun]) -> Table:
    """Microseconds per kernel name, those that add most to the step first."""
    table = Table(title="Microseconds by kernel", box=SIMPLE, padding=(0, 1), collapse_padding=True)
    for column in _COLUMNS:
        is_text = column in ("kernel", "kind")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    for name, *cells in _rows(kernels):
        table.add_row(short_name(name), *cells)
    return table


def summary_lines(kernels: Sequence[KernelRun]) -> Iterator[str]:
    """Sentences about the whole step."""
    step = summarize_step(kernels)
    yield (
        f"The step takes {step.span:.1f} us on the device, from the first kernel to the last: base kernels run in "
        f"{step.base:.1f} us of them, none at all in {step.idle:.1f} us."
    )
    overlaps = lora_overlaps(kernels)
    if overlaps:
        yield _lora_line(step, overlaps)


def write_markdown(
    kernels: Sequence[KernelRun], path: Path, *, title: str, command: str, facts: Sequence[str], figure: Path | None
) -> None:
    """The page of one trace; `figure` lies beside it."""
    lines = [f"# {title}", "", f"    {command}", "", *(f"- {fact}" for fact in facts), ""]
    lines += [f"{line}  " for line in summary_lines(kernels)]
    if figure is not None:
        lines += ["", f"![one decoder layer, a lane per stream]({figure.name})"]
    lines += ["", "## Microseconds by kernel", ""]
    lines += ["| " + " | ".join(_COLUMNS) + " |", "|---|---|---:|---:|---:|---:|---:|"]
    lines += [f"| `{_shorten(name)}` | " + " | ".join(cells) + " |" for name, *cells in _rows(kernels)]
    overlaps = lora_overlaps(kernels)
    if overlaps:
        lines += ["", "## What each LoRA kernel runs beside", ""]
        lines += ["| LoRA kernel | base kernel | runs | LoRA us | of them beside it |", "|---|---|---:|---:|---:|"]
        lines += list(_pair_rows(overlaps))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rows(kernels: Sequence[KernelRun]) -> Iterator[tuple[str, ...]]:
    span = summarize_step(kernels).span
    for total in totals_by_name(kernels):
        yield (
            total.name,
            kernel_kind(total.name).value,
            str(total.count),
            f"{total.total:.1f}",
            f"{total.added:.1f}",
            f"{total.added / total.count:.2f}",
            f"{total.added / span:.1%}",
        )


def _lora_line(step: StepSummary, overlaps: Sequence[LoraOverlap]) -> str:
    beside = sum(overlap.base is not None for overlap in overlaps)
    return (
        f"LoRA kernels run in {step.lora:.1f} us, {step.hidden:.1f} us of them ({step.hidden / step.lora:.0%}) beside "
        f"base kernels: {beside} of {len(overlaps)} LoRA kernels intersect a base kernel on another stream."
    )


def _pair_rows(overlaps: Sequence[LoraOverlap]) -> Iterator[str]:
    """One row per pair of kernel names; "none" for LoRA kernels that run alone."""
    counts: Counter[tuple[str, str]] = Counter()
    shared: dict[tuple[str, str], float] = {}
    lasting: dict[tuple[str, str], float] = {}
    for overlap in overlaps:
        base = "none" if overlap.base is None else f"`{_shorten(overlap.base.name)}`"
        pair = (f"`{_shorten(overlap.lora.name)}`", base)
        counts[pair] += 1
        lasting[pair] = lasting.get(pair, 0.0) + overlap.lora.duration
        shared[pair] = shared.get(pair, 0.0) + overlap.microseconds
    for pair, count in counts.most_common():
        yield f"| {pair[0]} | {pair[1]} | {count} | {lasting[pair]:.1f} | {shared[pair]:.1f} |"


def _shorten(name: str) -> str:
    """A full kernel name, cut where only template arguments are left."""
    return name if len(name) <= 100 else name[:97] + "..."
