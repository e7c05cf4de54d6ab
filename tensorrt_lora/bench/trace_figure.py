"""A window of a trace as a picture: a lane per stream, a bar per kernel, coloured by what it is for."""

from collections.abc import Iterator
from pathlib import Path

from tensorrt_lora.bench.kernel_kind import KernelKind, kernel_kind, short_name
from tensorrt_lora.bench.kernel_trace import KernelRun, main_stream
from tensorrt_lora.bench.layer_window import LayerWindow

_COLORS = {
    KernelKind.LORA: "#d1495b",
    KernelKind.PROJECTION: "#30638e",
    KernelKind.ATTENTION: "#66a182",
    KernelKind.ELEMENTWISE: "#edae49",
    KernelKind.OTHER: "#9a9a9a",
}
_BAR_HEIGHT = 0.35
_LABEL_LENGTH = 26
_MIN_LABELLED = 0.006  # of the window; shorter bars would have labels over labels


def save_trace_figure(window: LayerWindow, path: Path, *, title: str) -> None:
    """Write a PNG. Needs matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    main = main_stream(window.kernels, pattern="lora")
    # From the top down: the base's stream, then the others.
    streams = sorted({kernel.stream for kernel in window.kernels}, key=lambda stream: (stream != main, stream))
    lanes = {stream: -lane for lane, stream in enumerate(streams)}
    figure = Figure(figsize=(15, 1.5 + 1.9 * len(streams)), dpi=150, layout="constrained")
    axes = figure.subplots()
    width = window.end - window.start
    for kernel, start, duration in _bars(window):
        lane = lanes[kernel.stream]
        axes.broken_barh(
            [(start, duration)],
            (lane, _BAR_HEIGHT),
            facecolor=_COLORS[kernel_kind(kernel.name)],
            edgecolor="white",
            linewidth=0.3,
        )
        if duration >= _MIN_LABELLED * width and 0.0 < start + duration / 2 < width:
            axes.text(
                start + duration / 2,
                lane + _BAR_HEIGHT + 0.02,
                short_name(kernel.name)[:_LABEL_LENGTH],
                rotation=60,
                rotation_mode="anchor",
                fontsize=6,
            )
    axes.set_xlim(0, width)
    axes.set_ylim(min(lanes.values()) - 0.05, 1.0)
    axes.set_yticks(
        [lane + _BAR_HEIGHT / 2 for lane in lanes.values()],
        [f"stream {stream}" + (" (main)" if stream == main else "") for stream in streams],
    )
    axes.set(xlabel="microseconds", title=title)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    kinds = {kernel_kind(kernel.name) for kernel in window.kernels}
    patches = [Patch(color=_COLORS[kind], label=kind.value) for kind in KernelKind if kind in kinds]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), fontsize=8)
    figure.savefig(path)


def _bars(window: LayerWindow) -> Iterator[tuple[KernelRun, float, float]]:
    """Each kernel with the start and length of its bar: one that is launched early waits for the one before it."""
    last_end: dict[int, float] = {}
    for kernel in sorted(window.kernels, key=lambda kernel: kernel.end):
        start = max(kernel.start, last_end.get(kernel.stream, kernel.start))
        last_end[kernel.stream] = kernel.end
        yield kernel, start - window.start, kernel.end - start
