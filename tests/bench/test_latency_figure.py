"""The picture is drawn, with the values of the records as its points."""

from pathlib import Path

import pytest

from tensorrt_lora.bench.latency_figure import save_latency_figure
from tensorrt_lora.bench.latency_records import LatencyResult

pytest.importorskip("matplotlib")


def test_draws_every_mode(latency_result: LatencyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[str, list[float]]] = []
    plot = Axes.plot

    def remember(self: Axes, sizes: list[str], values: list[float], *args: object, **style: object) -> object:
        assert sizes == ["1", "8"]
        drawn.append((str(style.get("label", "tax")), list(values)))
        return plot(self, sizes, values, *args, **style)

    monkeypatch.setattr(Axes, "plot", remember)
    path = tmp_path / "latency.png"
    save_latency_figure(latency_result, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert drawn == [
        ("base", [4.0, 4.0]),
        ("sequential", [5.0, 5.0]),
        ("tax", [25.0, 25.0]),
        ("overlap", [4.5, 4.5]),
        ("tax", [12.5, 12.5]),
        ("floor, base", [3.6, 3.6]),
        ("floor, LoRA", [3.6, 3.6]),
    ]
