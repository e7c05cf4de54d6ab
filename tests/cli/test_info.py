"""`tensorrt-lora info`: versions and choices with their reasons."""

import pytest
import torch
from typer.testing import CliRunner

from tensorrt_lora.cli.info import engine_choices
from tensorrt_lora.cli.main import app


def test_shows_versions_and_choices() -> None:
    result = CliRunner().invoke(app, ["info"], env={"COLUMNS": "160"})
    assert result.exit_code == 0
    for text in ("torch", torch.__version__, "transformers", "attention", "CUDA graphs"):
        assert text in result.output


def test_choices_on_the_cpu() -> None:
    choices = {choice.what: choice for choice in engine_choices(torch.device("cpu"))}
    assert choices["attention"].chosen == "VANILLA (torch)"
    assert "it needs a CUDA device" in choices["attention"].reason
    assert choices["CUDA graphs"].chosen == "off"
    assert choices["device"].chosen == "cpu"
    assert all(choice.reason for choice in choices.values())


@pytest.mark.gpu
def test_choices_on_cuda() -> None:
    choices = {choice.what: choice for choice in engine_choices(torch.device("cuda"))}
    assert choices["CUDA graphs"].chosen == "on"
    assert choices["LoRA and glue kernels"].chosen == "Triton"
