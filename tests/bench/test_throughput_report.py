"""What is said of a sweep, and that the picture shows it, by hand-checked numbers (see `conftest.py`)."""

from pathlib import Path

import pytest
from rich.console import Console

from tensorrt_lora.bench.throughput_records import ThroughputResult
from tensorrt_lora.bench.throughput_report import throughput_table, write_markdown


def test_table_fits_80_columns(throughput_result: ThroughputResult) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(throughput_table(throughput_result))
    rows = [line.split() for line in capture.get().splitlines() if "sequential" in line]
    assert rows == [
        ["4", "sequential", "4.00", "1024", "44/95", "11.0/24.0", "2.75/6.00", "+0.0%", "+37.5%"],
        ["inf", "sequential", "24.00", "6144", "44/95", "11.0/24.0", "2.75/6.00", "+33.3%", "+37.5%"],
    ]
    assert "qwen3-8b-bf16: 256 tokens in, 256 out (+-50%)" in capture.get()
    assert "…" not in capture.get()


def test_markdown(throughput_result: ThroughputResult, tmp_path: Path) -> None:
    path = tmp_path / "throughput.md"
    write_markdown(throughput_result, path, figure=tmp_path / "throughput.png")
    text = path.read_text()
    assert "    tensorrt-lora bench throughput --preset qwen3-8b-bf16\n" in text
    assert "128 requests at each rate, 256 tokens in, 256 out (+-50%), adapters of rank 32" in text
    assert "- commit: abc" in text and "- load: 5.0 s" in text
    row = (
        "| inf |  | sequential | sequential | 24.000 | 6144 | 40.0 | 50.0 / 44.0 / 80.0 / 95.0 "
        "| 12.00 / 11.00 / 14.00 / 24.00 | 3.000 / 2.750 / 5.000 / 6.000 | +33.3% | +37.5% |"
    )
    assert row in text and "| 4 | 3.90 | base | base only | 4.000 |" in text
    assert "(throughput.png)" in text
    write_markdown(throughput_result, path, figure=None)
    assert ".png" not in path.read_text()


def test_figure_draws_every_mode(
    throughput_result: ThroughputResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    from tensorrt_lora.bench.throughput_figure import save_throughput_figure

    drawn: list[tuple[str, list[float]]] = []
    plot = Axes.plot

    def remember(self: Axes, rates: list[str], values: list[float], *args: str, **style: object) -> object:
        assert rates == ["4", "inf"]
        drawn.append((str(style.get("label", args[0])), list(values)))
        return plot(self, rates, values, *args, **style)

    monkeypatch.setattr(Axes, "plot", remember)
    path = tmp_path / "throughput.png"
    save_throughput_figure(throughput_result, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert drawn == [
        ("base", [4.0, 32.0]),
        ("o-", [2.0, 2.0]),
        ("o:", [6.0, 6.0]),
        ("sequential", [4.0, 24.0]),
        ("o-", [2.75, 2.75]),
        ("o:", [6.0, 6.0]),
    ]
