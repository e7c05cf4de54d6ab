"""`tensorrt-lora info`: versions and choices with their reasons, and plans without a GPU."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tensorrt_lora.cli.info import engine_choices
from tensorrt_lora.cli.main import app
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.lora.lora_plan_table import PlanTableFile, PlanTimes


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


def plans(*options: str):
    return CliRunner().invoke(app, ["info", "--plan", *options], env={"COLUMNS": "160"})


@pytest.fixture
def table_file(tmp_path: Path) -> str:
    """Times of the tiny preset's o_proj at one token."""
    row = PlanTimes(
        in_features=256,
        out_features=256,
        itemsize=2,
        tokens=1,
        many=False,
        rank=16,
        base=10.0,
        microseconds={"sequential": 14.0, "both_beside": 11.5},
    )
    path = tmp_path / "plans.json"
    PlanTableFile(device="NVIDIA X", measured_with={}, rows=[row]).write(path)
    return str(path)


def test_plans_of_a_preset_by_a_table(table_file: str) -> None:
    options = ("--preset", "tiny", "--max-lora-rank", "16", "--max-loras", "1", "--table", table_file)
    result = plans(*options, "--overlap")
    assert result.exit_code == 0, result.output
    for text in (
        "q+k+v",
        "gate+up",
        "both_beside +1.5",
        "add_in_consumer",
        "overlap_lora_and_base=True",
        "1 to 2048",
        "plans.json",
    ):
        assert text in result.output
    assert "many" not in result.output
    assert "sequential +4.0" in plans(*options).output, "by default there is one stream"


def test_plans_of_a_checkpoint(tmp_path: Path, table_file: str) -> None:
    model = str(find_preset("tiny").write(tmp_path / "model"))
    result = plans("--model", model, "--max-batch-size", "3", "--max-lora-rank", "8", "--table", table_file)
    assert result.exit_code == 0 and "sequential +4.0" in result.output and "many" in result.output


def test_plans_of_all_that_a_table_has(table_file: str) -> None:
    result = plans("--table", table_file)
    assert result.exit_code == 0 and "256x256 of 2 bytes" in result.output and "other projections" in result.output


def test_plans_for_a_device_without_a_table() -> None:
    result = plans("--device", "NVIDIA No Such Device")
    assert result.exit_code == 0 and "no table for NVIDIA No Such Device" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plan", "--preset", "nothing"], "no preset 'nothing'"),
        (["--plan", "--preset", "tiny", "--model", "x"], "give one of them"),
        (["--plan", "--table", "x", "--device", "y"], "give one of them"),
        (["--plan", "--table", "no/such.json"], "cannot be read"),
        (["--plan", "--max-lora-rank", "0"], "max_lora_rank"),
        (["--plan", "--max-batch-size", "0"], "max_batch_size"),
        (["--preset", "tiny"], "--plan"),
    ],
)
def test_wrong_options(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["info", *options])
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output
