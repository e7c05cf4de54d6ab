"""`tensorrt-lora bench latency`: from options to files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.cli.bench import parse_modes, parse_numbers
from tensorrt_lora.cli.main import app


def run(*options: str):
    return CliRunner().invoke(app, ["bench", "latency", *options])


def test_writes_records_and_summary(tmp_path: Path) -> None:
    result = run(
        *("--preset", "tiny", "--isl", "4", "--osl", "3", "--concurrency", "1,2", "--lora-rank", "4"),
        *("--mix", "uniform", "--modes", "base,overlap", "--repeats", "1", "--device", "cpu"),
        *("--commit", "abc", "--output", str(tmp_path)),
    )
    assert result.exit_code == 0, result.output
    header, *records = map(json.loads, (tmp_path / "latency-tiny-uniform.jsonl").read_text().splitlines())
    assert header["commit"] == "abc" and header["command"].startswith("tensorrt-lora ")
    assert [(record["concurrency"], record["mode"]) for record in records] == [
        (concurrency, mode) for concurrency in (1, 2) for mode in ("base", "overlap")
    ]
    assert "| 2 | overlap |" in (tmp_path / "latency-tiny-uniform.md").read_text()
    assert "overlap" in result.output and "latency-tiny-uniform" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "nothing"], "no preset 'nothing'"),
        (["--preset", "tiny", "--concurrency", "1,x"], "'1,x'"),
        (["--preset", "tiny", "--modes", "base,fast"], "unknown mode 'fast'"),
        (["--preset", "tiny", "--osl", "1"], "osl"),
    ],
)
def test_mistakes(options: list[str], message: str, tmp_path: Path) -> None:
    result = run(*options, "--output", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert message in result.output and "Traceback" not in result.output
    assert not (tmp_path / "new").exists()


def test_parsing() -> None:
    assert parse_numbers("--concurrency", "1,8,64") == (1, 8, 64)
    assert parse_modes("best, base") == (BenchMode.BEST, BenchMode.BASE)
