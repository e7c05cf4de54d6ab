"""What is said of prefill steps, by hand-checked numbers (see `conftest.py`)."""

from pathlib import Path

from rich.console import Console

from tensorrt_lora.bench.prefill_records import PrefillResult
from tensorrt_lora.bench.prefill_report import prefill_table, write_markdown


def test_table_fits_80_columns(prefill_result: PrefillResult) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(prefill_table(prefill_result))
    (row,) = [line.split() for line in capture.get().splitlines() if "sequential" in line]
    assert row == ["8192", "sequential", "230.00", "229.00", "to", "250.00", "35617", "534.3", "+15.0%", "12.50"]
    assert "…" not in capture.get()


def test_markdown(prefill_result: PrefillResult, tmp_path: Path) -> None:
    path = tmp_path / "prefill.md"
    write_markdown(prefill_result, path)
    text = path.read_text()
    assert "    tensorrt-lora bench prefill --preset qwen3-8b-bf16\n" in text
    assert "medians of 10 steps" in text and "- commit: abc" in text
    assert "| 8192 | sequential | 230.00 | 229.00 to 250.00 | 35617 | 534.3 | +15.0% | 12.50 |" in text
    assert text.count("| base |") == 2
