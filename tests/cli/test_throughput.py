"""`tensorrt-lora bench throughput`: from options to files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorrt_lora.cli.main import app
from tensorrt_lora.cli.throughput import parse_rates


def run(*options: str):
    return CliRunner().invoke(app, ["bench", "throughput", *options])


def test_writes_records_and_summary(tmp_path: Path) -> None:
    result = run(
        *("--preset", "tiny", "--isl", "4", "--osl", "3", "--length-spread", "0.5", "--request-rate", "inf,500"),
        *("--num-requests", "4", "--lora-rank", "4", "--mix", "uniform", "--modes", "base,overlap"),
        *("--max-batch-size", "2", "--device", "cpu", "--commit", "abc", "--output", str(tmp_path)),
    )
    assert result.exit_code == 0, result.output
    header, *records = map(json.loads, (tmp_path / "throughput-tiny-uniform.jsonl").read_text().splitlines())
    assert header["commit"] == "abc" and header["command"].startswith("tensorrt-lora ")
    assert [(record["request_rate"], record["mode"]) for record in records] == [
        (rate, mode) for rate in (500.0, "inf") for mode in ("base", "overlap")
    ]
    assert "| overlap | both_beside |" in (tmp_path / "throughput-tiny-uniform.md").read_text()
    assert "overlap" in result.output and "throughput-tiny-uniform" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "nothing"], "no preset 'nothing'"),
        (["--preset", "tiny", "--request-rate", "1,x"], "'1,x'"),
        (["--preset", "tiny", "--request-rate", "0"], "request_rate"),
        (["--preset", "tiny", "--modes", "base,fast"], "unknown mode 'fast'"),
    ],
)
def test_mistakes(options: list[str], message: str, tmp_path: Path) -> None:
    result = run(*options, "--output", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert message in result.output and "Traceback" not in result.output
    assert not (tmp_path / "new").exists()


def test_parsing() -> None:
    assert parse_rates("1, 4.5,inf") == (1.0, 4.5, "inf")
