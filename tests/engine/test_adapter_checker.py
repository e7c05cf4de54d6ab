"""The verdict on the meta device is that of the loaded engine."""

from pathlib import Path

import pytest
import torch

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.engine.adapter_checker import AdapterChecker
from tensorrt_lora.lora_request import LoRARequest
from tests.support.tiny_adapters import (
    PREFIX,
    config_fields,
    find_sites,
    lora_pair,
    random_tensors,
    write_adapter,
)
from tests.support.tiny_models import FAMILIES, make_tiny_model, save_tiny_model

_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _config_only(directory: Path, family: str) -> Path:
    """A checkpoint without its weights."""
    model_dir = save_tiny_model(directory / family, family, tokenizer=False)
    for file in model_dir.glob("*.safetensors"):
        file.unlink()
    return model_dir


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_on_everything_fits_the_model_it_was_made_for(tmp_path: Path, family: str):
    tensors = random_tensors(find_sites(make_tiny_model(family)), _LINEAR, 4)
    adapter = write_adapter(tmp_path / "adapter", tensors, config_fields(4, "all-linear"))
    report = AdapterChecker(_config_only(tmp_path, family), LoraConfig()).check(LoRARequest("a1", 1, str(adapter)))
    assert report.problems == () and len(report.modules) == report.num_sites == len(tensors) // 2
    assert report.dtype == "float32"


def test_targets_come_from_the_config_or_from_its_adapters(tmp_path: Path):
    model_dir = _config_only(tmp_path, "qwen3")
    head = write_adapter(tmp_path / "head", lora_pair("lm_head", 4, 72, 272), config_fields(4, ["lm_head"]))
    request = LoRARequest("head", 1, str(head))
    assert "lora_target_modules names it" in AdapterChecker(model_dir, LoraConfig()).check(request).problems[0]
    for lora_config in (LoraConfig(lora_target_modules=["lm_head"]), LoraConfig(lora_dir=[str(head)])):
        report = AdapterChecker(model_dir, lora_config).check(request)
        assert report.ok and report.num_sites == 1
    with pytest.raises(AdapterError, match="the path does not exist"):
        AdapterChecker(model_dir, LoraConfig(lora_dir=[str(tmp_path / "gone")]))


def test_shapes_and_biases_of_the_model_are_known_without_its_weights(tmp_path: Path):
    tensors = lora_pair("lm_head", 4, 72, 272) | lora_pair("model.layers.0.self_attn.q_proj", 4, 72, 96)
    tensors[f"{PREFIX}lm_head.base_layer.weight"] = torch.zeros(275, 72)
    tensors[f"{PREFIX}model.layers.0.self_attn.q_proj.base_layer.bias"] = torch.zeros(96)
    fields = config_fields(4, ["lm_head", "q_proj"], bias="lora_only")
    adapter = write_adapter(tmp_path / "adapter", tensors, fields)
    lora_config = LoraConfig(lora_target_modules=["attn_q", "lm_head"])
    report = AdapterChecker(_config_only(tmp_path, "qwen3"), lora_config).check(LoRARequest("a1", 1, str(adapter)))
    assert len(report.problems) == 2
    assert "lm_head.base_layer.weight: got [275, 72], the model's lm_head is [272, 72]" in report.problems[0]
    assert "trained biases of layers that have none in this model" in report.problems[1]


def test_a_model_that_is_not_there(tmp_path: Path):
    with pytest.raises(ValueError, match="neither an existing path nor"):
        AdapterChecker(tmp_path / "gone", LoraConfig())
