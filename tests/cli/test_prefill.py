"""`tensorrt-lora bench prefill`: from options to files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorrt_lora.cli.main import app


def run(*options: str):
    return CliRunner().invoke(app, ["bench", "prefill", *options])


def test_writes_records_and_summary(tmp_path: Path) -> None:
    result = run(
        *("--preset", "tiny", "--tokens", "16,32", "--prompts", "2", "--lora-rank", "4", "--modes", "base,sequential"),
        *("--repeats", "1", "--device", "cpu", "--commit", "abc", "--output", str(tmp_path)),
    )
    assert result.exit_code == 0, result.output
    header, *records = map(json.loads, (tmp_path / "prefill-tiny-identical.jsonl").read_text().splitlines())
    assert header["commit"] == "abc" and header["command"].startswith("tensorrt-lora ")
    assert [(record["tokens"], record["mode"]) for record in records] == [
        (tokens, mode) for tokens in (16, 32) for mode in ("base", "sequential")
    ]
    assert "| 32 | sequential |" in (tmp_path / "prefill-tiny-identical.md").read_text()
    assert "sequential" in result.output and "prefill-tiny-identical" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "nothing"], "no preset 'nothing'"),
        (["--preset", "tiny", "--tokens", "8k"], "--tokens '8k'"),
        (["--preset", "tiny", "--tokens", "9", "--prompts", "2"], "no multiple of prompts=2"),
    ],
)
def test_mistakes(options: list[str], message: str, tmp_path: Path) -> None:
    result = run(*options, "--output", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert message in result.output and "Traceback" not in result.output
    assert not (tmp_path / "new").exists()
