"""`tensorrt-lora`: the sub-commands are there, and a user's mistake is one message without a traceback."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorrt_lora.cli.main import app


def test_help_lists_the_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in ("generate", "manifest", "info"):
        assert command in result.output


@pytest.mark.parametrize("command", ["generate", "manifest", "info"])
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0


def test_a_value_error_is_one_message() -> None:
    result = CliRunner().invoke(app, ["manifest"])
    assert result.exit_code == 2
    assert "error:" in result.output and "Traceback" not in result.output


def test_a_directory_as_config_is_one_message(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["generate", "--config", str(tmp_path), "--prompt", "Hi"])
    assert result.exit_code == 2
    assert "cannot be read: Is a directory" in result.output and str(tmp_path) in result.output
