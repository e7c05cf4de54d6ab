"""`tensorrt-lora manifest`: writes, checks with a diff and exit status 1, and refuses what is unclear."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorrt_lora.cli.main import app


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["manifest", *arguments])
    return result.exit_code, result.output


def test_write_then_check(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    assert _run("--write", "--file", str(file))[0] == 0
    code, output = _run("--check", "--file", str(file))
    assert code == 0 and "up to date" in output


def test_check_shows_the_diff(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    _run("--write", "--file", str(file))
    file.write_text(file.read_text().replace('"default": 64,', '"default": 32,'))
    code, output = _run("--check", "--file", str(file))
    assert code == 1
    assert '-      "default": 32,' in output and '+      "default": 64,' in output
    assert "out of date" in output


@pytest.mark.parametrize("arguments", [(), ("--write", "--check")])
def test_one_action_is_needed(arguments: tuple[str, ...]) -> None:
    code, output = _run(*arguments)
    assert code == 2 and "error: give either --write or --check" in output
