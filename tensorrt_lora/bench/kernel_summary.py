"""Where the time of a traced step went: sums by kernel, what ran beside what, and what nothing ran in.

Takes kernels alone; knows neither the engine nor the trace's format.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorrt_lora.bench.kernel_kind import KernelKind, kernel_kind
from tensorrt_lora.bench.kernel_trace import KernelRun

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """All runs of one kernel; microseconds.

    Attributes:
        total: from start to end. A kernel that is launched early counts while it waits for the one before.
        added: of a kernel on the main stream (that of most kernels), from the end of the one that ended before, or from
            its start if that is later; of another stream's, what no kernel of the main stream runs beside. With the
            time in which nothing runs, these sum up to the step.
    """

    name: str
    count: int
    total: float
    added: float


@dataclass(frozen=True, slots=True)
class LoraOverlap:
    """One run of a LoRA kernel, and the base kernel on another stream that it shared most time with, if any."""

    lora: KernelRun
    base: KernelRun | None
    microseconds: float


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A step in microseconds; kernels that run at the same time count once.

    Attributes:
        span: from the first kernel's start to the last one's end.
        base: in which a base kernel runs.
        lora: in which a LoRA kernel runs.
        hidden: in which both do.
        idle: in which neither does.
    """

    span: float
    base: float
    lora: float
    hidden: float
    idle: float


def totals_by_name(kernels: Iterable[KernelRun]) -> list[KernelTotal]:
    """One entry per kernel name, those that add most first."""
    kernels = sorted(kernels, key=lambda kernel: kernel.end)
    main_stream = Counter(kernel.stream for kernel in kernels).most_common(1)[0][0] if kernels else 0
    main = _union((kernel.start, kernel.end) for kernel in kernels if kernel.stream == main_stream)
    found: dict[str, KernelTotal] = {}
    last_end = -math.inf
    for kernel in kernels:
        if kernel.stream == main_stream:
            added = kernel.end - max(kernel.start, last_end)
            last_end = kernel.end
        else:
            beside = (min(end, kernel.end) - max(start, kernel.start) for start, end in main)
            added = kernel.duration - sum(shared for shared in beside if shared > 0)
        before = found.get(kernel.name, KernelTotal(kernel.name, 0, 0.0, 0.0))
        found[kernel.name] = KernelTotal(
            kernel.name, before.count + 1, before.total + kernel.duration, before.added + added
        )
    return sorted(found.values(), key=lambda total: (-total.added, -total.total))


def lora_overlaps(kernels: Sequence[KernelRun]) -> list[LoraOverlap]:
    """For every run of a LoRA kernel, what it ran beside; in order of time."""
    lora, base = _split(kernels)
    found = []
    for kernel in lora:
        others = [other for other in base if other.stream != kernel.stream and other.intersects(kernel)]
        partner = max(others, key=kernel.overlap, default=None)
        found.append(LoraOverlap(kernel, partner, kernel.overlap(partner) if partner is not None else 0.0))
    return found


def summarize_step(kernels: Sequence[KernelRun]) -> StepSummary:
    """The times of one step; `kernels` are its kernels on all streams."""
    lora, base = (_union((kernel.start, kernel.end) for kernel in group) for group in _split(kernels))
    span = max(kernel.end for kernel in kernels) - min(kernel.start for kernel in kernels)
    lora_time, base_time = _length(lora), _length(base)
    busy = _length(_union([*lora, *base]))
    return StepSummary(
        span=span,
        base=base_time,
        lora=lora_time,
        hidden=lora_time + base_time - busy,
        idle=span - busy,
    )


def _split(kernels: Sequence[KernelRun]) -> tuple[list[KernelRun], list[KernelRun]]:
    """(LoRA kernels, the others)."""
    lora = [kernel for kernel in kernels if kernel_kind(kernel.name) is KernelKind.LORA]
    return lora, [kernel for kernel in kernels if kernel_kind(kernel.name) is not KernelKind.LORA]


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as intervals that do not touch."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
