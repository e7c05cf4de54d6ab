"""What is said of a result, by hand-checked numbers (see `conftest.py`)."""

from pathlib import Path

from rich.console import Console

from tensorrt_lora.bench.latency_records import LatencyResult
from tensorrt_lora.bench.latency_report import latency_table, overlap_savings, write_markdown


def test_table_fits_80_columns(latency_result: LatencyResult) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(latency_table(latency_result))
    rows = [line.split() for line in capture.get().splitlines() if "overlap" in line]
    assert rows[0] == ["1", "overlap", "1.125", "4.500", "20.0", "228", "+12.5%", "80%", "0.70"]
    assert [row[:2] for row in rows] == [["1", "overlap"], ["8", "overlap"]]
    assert "…" not in capture.get()


def test_savings(latency_result: LatencyResult) -> None:
    first, second = overlap_savings(latency_result.records)
    assert first == "Concurrency 1: overlap saves 0.125 s of 1.250 s (10.0%), 0.500 ms per token."
    assert second.startswith("Concurrency 8:")
    base_only = [record for record in latency_result.records if record.mode == "base"]
    assert list(overlap_savings(base_only)) == []


def test_ranks_are_named(latency_result: LatencyResult, tmp_path: Path) -> None:
    latency_result.header.options = {**latency_result.header.options, "lora_ranks": [8, 128]}
    write_markdown(latency_result, tmp_path / "latency.md", figure=None)
    text = (tmp_path / "latency.md").read_text()
    assert "adapters of rank 8, 128 on all" in text and "the largest adapter 174.0 MB" in text


def test_markdown(latency_result: LatencyResult, tmp_path: Path) -> None:
    path = tmp_path / "latency.md"
    write_markdown(latency_result, path, figure=tmp_path / "latency.png")
    text = path.read_text()
    assert "    tensorrt-lora bench latency --preset qwen3-8b-bf16\n" in text
    assert "- copy bandwidth: 4.300 TB/s" in text and "captured in 9.5 s" in text
    assert "- plan of mode best: shrink_beside at 1, both_beside at 8" in text
    row = "| 1 | overlap | 1.125 | 1.115 to 1.135 | 4.500 | 20.0 | 228 | +12.5% | 3.600 | 80% | 0.70 |"
    assert row in text
    assert "(latency.png)" in text
    write_markdown(latency_result, path, figure=None)
    assert ".png" not in path.read_text()
