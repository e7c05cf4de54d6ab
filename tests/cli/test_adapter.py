import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from tensorrt_lora.cli.main import app
from tests.support.tiny_adapters import config_fields, find_sites, lora_pair, random_tensors, write_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

_TENSORS = random_tensors(find_sites(make_tiny_model("qwen3")), ("q_proj", "v_proj"), 4)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_tiny_model(tmp_path_factory.mktemp("model"), "qwen3", tokenizer=False)
    (directory / "model.safetensors").unlink()  # the weights are not needed
    return directory


@pytest.fixture
def good(tmp_path: Path) -> Path:
    fields = config_fields(4, ["q_proj", "v_proj"], alpha_pattern={"layers.1.self_attn.v_proj": 4})
    return write_adapter(tmp_path / "good", _TENSORS, fields)


def run(adapter: Path, model_dir: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["adapter", "check", str(adapter), "--model", str(model_dir), *options])


def test_a_good_adapter(good: Path, model_dir: Path) -> None:
    result = run(good, model_dir)
    assert result.exit_code == 0
    assert "adapter good" in result.stdout
    rows = [" ".join(line.replace("│", " ").split()) for line in result.stdout.splitlines()]
    assert "model.layers.*.self_attn.q_proj 2 layers 4 2 5.2" in rows
    assert "model.layers.0.self_attn.v_proj 1 place 4 2 1.6" in rows
    assert "model.layers.1.self_attn.v_proj 1 place 4 1 1.6" in rows
    assert "4 modules, rank <= 4, 0.01 MiB in float32, stored as float32" in rows
    assert rows[-1] == "can be served"


def test_a_bad_adapter_shows_every_problem(good: Path, model_dir: Path) -> None:
    (good / "adapter_config.json").write_text(json.dumps(config_fields(4, ["q_proj"], use_dora=True)))
    result = run(good, model_dir, "--max-lora-rank", "2")
    assert result.exit_code == 1
    problems = [line for line in result.stdout.splitlines() if line.startswith("problem: ")]
    assert len(problems) == 7
    assert "problem: model.layers.0.self_attn.q_proj: rank 4 is above max_lora_rank=2; raise it" in result.stdout
    assert result.stdout.rstrip().endswith("cannot be served: 7 problem(s)")


def test_json(good: Path, model_dir: Path) -> None:
    result = run(good, model_dir, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["ok"] and report["max_rank"] == 4 and len(report["modules"]) == 4
    result = run(good, model_dir, "--json", "--target", "attn_q")
    assert result.exit_code == 1
    assert "add 'attn_v'" in json.loads(result.stdout)["problems"][0]


def test_what_the_engine_must_be_told_is_shown(tmp_path: Path, model_dir: Path) -> None:
    adapter = write_adapter(tmp_path, lora_pair("lm_head", 4, 72, 272), config_fields(4, ["lm_head"]))
    result = run(adapter, model_dir)
    assert result.exit_code == 0
    assert "note: the engine needs lora_target_modules=['lm_head'], or more" in result.stdout


def test_a_file_that_is_not_there(tmp_path: Path, model_dir: Path) -> None:
    result = run(tmp_path / "gone", model_dir)
    assert result.exit_code == 1
    assert "problem: the path does not exist" in result.stdout


def test_a_model_that_is_not_there_is_a_mistake_of_the_call(good: Path, tmp_path: Path) -> None:
    result = run(good, tmp_path / "gone")
    assert result.exit_code == 2
    assert "neither an existing path nor" in result.stderr


def test_what_was_not_compared_is_in_the_verdict(good: Path, model_dir: Path) -> None:
    key = "base_model.model.model.embed_tokens.base_layer.weight"
    write_adapter(good, {**_TENSORS, key: torch.ones(272, 72)}, config_fields(4, ["q_proj", "v_proj"]))
    result = run(good, model_dir)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"can be served if these equal the model's own, not compared: {key}"


def test_an_empty_directory_name_is_called_that(model_dir: Path) -> None:
    result = CliRunner().invoke(app, ["adapter", "check", "", "--model", str(model_dir)])
    assert result.exit_code == 2
    assert "DIR is empty: give the adapter's directory, or a hub id" in result.stderr


def test_a_target_that_is_no_module(good: Path, model_dir: Path) -> None:
    result = run(good, model_dir, "--target", "bogus")
    assert result.exit_code == 2
    assert "error: lora_target_modules: " in result.stderr and "bogus" in result.stderr
    assert "pydantic" not in result.stderr and "validation error" not in result.stderr
