"""The picture is drawn, with a lane per stream and a bar per kernel of the window."""

from pathlib import Path

import pytest

from tensorrt_lora.bench.kernel_trace import KernelRun
from tensorrt_lora.bench.layer_window import LayerWindow, layer_window
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
    in_order = sorted(window.kernels, key=lambda kernel: kernel.end)
    assert bars == [(kernel.start - window.start, kernel.duration) for kernel in in_order]


def test_a_bar_begins_where_the_kernel_before_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    bars: list[tuple[float, float]] = []
    draw_bar = Axes.broken_barh
    monkeypatch.setattr(
        Axes, "broken_barh", lambda self, x, y, **style: (bars.extend(x), draw_bar(self, x, y, **style))[1]
    )
    early = [KernelRun("a", 7, 0.0, 10.0), KernelRun("b", 7, 1.0, 12.0), KernelRun("c", 20, 3.0, 11.0)]
    save_trace_figure(LayerWindow(0.0, 12.0, early), tmp_path / "trace.png", title="made up")
    assert bars == [(0.0, 10.0), (3.0, 8.0), (10.0, 2.0)]
