"""Which CUDA kernels ran on which stream, and when, as the profiler saw them."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class KernelRun:
    """One kernel on the device; times in microseconds."""

    name: str
    stream: int
    start: float
    end: float

    def intersects(self, other: "KernelRun") -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class StreamUse:
    """Kernels whose name holds a pattern: how many ran on the stream of most other kernels, and how many elsewhere."""

    main: list[KernelRun]
    others: list[KernelRun]


def profile_kernels(run: Callable[[], object]) -> list[KernelRun]:
    """The kernels that `run` starts, in order of time. `run` is called once more before, to warm up."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [
        KernelRun(event["name"], int(event["args"]["stream"]), event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "kernel"
    ]
    return sorted(kernels, key=lambda kernel: kernel.start)


def stream_use(kernels: list[KernelRun], *, pattern: str) -> StreamUse:
    """Where the kernels named after `pattern` ran; the main stream is the one with the most other kernels."""
    base = [kernel.stream for kernel in kernels if pattern not in kernel.name]
    main_stream = max(set(base), key=base.count)
    named = [kernel for kernel in kernels if pattern in kernel.name]
    return StreamUse(
        [kernel for kernel in named if kernel.stream == main_stream],
        [kernel for kernel in named if kernel.stream != main_stream],
    )
