"""Which CUDA kernels ran on which stream, and when, as the profiler saw them.

Owns the reading of Chrome traces. Used by `tensorrt-lora trace` and by tests of what runs beside what.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One kernel on the device; times in microseconds."""

    name: str
    stream: int
    start: float
    end: float

    @property
    def duration(self) -> float:
        return self.end - self.start

    def overlap(self, other: "KernelRun") -> float:
        """Microseconds in which both run."""
        return max(0.0, min(self.end, other.end) - max(self.start, other.start))

    def intersects(self, other: "KernelRun") -> bool:
        return self.overlap(other) > 0.0


@dataclass(frozen=True, slots=True)
class StreamUse:
    """Kernels whose name holds a pattern: those on the stream of most other kernels, and those elsewhere."""

    main: list[KernelRun]
    others: list[KernelRun]


def record_trace(run: Callable[[], object], path: Path) -> list[KernelRun]:
    """Profile `run` on the device, write the Chrome trace to `path`, and return its kernels in order of time.

    `run` is called once more before, to warm up.
    """
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    return read_kernels(path)


def profile_kernels(run: Callable[[], object]) -> list[KernelRun]:
    """`record_trace` without keeping the file."""
    with tempfile.TemporaryDirectory() as directory:
        return record_trace(run, Path(directory) / "trace.json")


def read_kernels(path: Path) -> list[KernelRun]:
    """The kernels of a Chrome trace that the profiler wrote, in order of time."""
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    kernels = [
        KernelRun(event["name"], int(event["args"]["stream"]), event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "kernel"
    ]
    return sorted(kernels, key=lambda kernel: kernel.start)


def main_stream(kernels: Sequence[KernelRun], *, pattern: str) -> int:
    """The stream with the most kernels that are not named after `pattern`."""
    streams = [kernel.stream for kernel in kernels if pattern not in kernel.name]
    return max(set(streams), key=streams.count)


def stream_use(kernels: Sequence[KernelRun], *, pattern: str) -> StreamUse:
    """Where the kernels named after `pattern` ran."""
    main = main_stream(kernels, pattern=pattern)
    named = [kernel for kernel in kernels if pattern in kernel.name]
    return StreamUse(
        [kernel for kernel in named if kernel.stream == main],
        [kernel for kernel in named if kernel.stream != main],
    )
