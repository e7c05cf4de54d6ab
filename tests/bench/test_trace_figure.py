"""The picture is drawn, with a lane per stream and a bar per kernel of the window."""

from pathlib import Path

import pytest

from tensorrt_lora.bench.kernel_trace import KernelRun
from tensorrt_lora.bench.layer_window import layer_window
from tensorrt_lora.bench.trace_figure import save_trace_figure

pytest.importorskip("matplotlib")


def test_draws_lanes_and_bars(kernels: list[KernelRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    bars: list[tuple[float, float]] = []
    lanes: list[str] = []
    draw_bar, set_lanes = Axes.broken_barh, Axes.set_yticks
    monkeypatch.setattr(
        Axes, "broken_barh", lambda self, x, y, **style: (bars.extend(x), draw_bar(self, x, y, **style))[1]
    )
    monkeypatch.setattr(
        Axes, "set_yticks", lambda self, ticks, labels: (lanes.extend(labels), set_lanes(self, ticks, labels))[1]
    )
    window = layer_window(kernels, num_layers=4)
    path = tmp_path / "trace.png"
    save_trace_figure(window, path, title="made up")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert lanes == ["stream 7 (main)", "stream 20"]
    assert bars == [(kernel.start - window.start, kernel.duration) for kernel in window.kernels]
