"""Presets against what is published of the models: the number of their parameters, and configs that load."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.config.model_presets import TINY, find_preset, preset_names

# As the model cards and safetensors indexes have it; the shared matrix of a tied model counts once.
PUBLISHED_PARAMETERS = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "llama-3.1-8b": 8_030_261_248,
}


@pytest.mark.parametrize("shape", PUBLISHED_PARAMETERS)
def test_has_the_published_number_of_parameters(shape: str, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(find_preset(f"{shape}-bf16").write(tmp_path))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED_PARAMETERS[shape]


@pytest.mark.parametrize("name", [*preset_names(), TINY])
def test_the_engine_reads_it(name: str, tmp_path: Path) -> None:
    config = ModelConfig.from_pretrained(str(find_preset(name).write(tmp_path)))
    assert config.torch_dtype is torch.bfloat16
    assert config.head_dim == 128
    assert config.sliding_window is None
    assert not (config.qkv_bias or config.o_bias or config.mlp_bias)


def test_rotary_parameters_arrive(tmp_path: Path) -> None:
    qwen3 = ModelConfig.from_pretrained(str(find_preset("qwen3-8b-bf16").write(tmp_path / "qwen3")))
    assert qwen3.rope_parameters["rope_theta"] == 1e6
    assert (qwen3.max_position_embeddings, qwen3.eos_token_ids) == (40960, (151645,))
    llama = ModelConfig.from_pretrained(str(find_preset("llama-3.1-8b-bf16").write(tmp_path / "llama")))
    assert llama.rope_parameters["rope_type"] == "llama3"
    assert llama.rope_parameters["rope_theta"] == 5e5
    assert llama.rope_parameters["factor"] == 8.0
    assert (llama.max_position_embeddings, llama.eos_token_ids) == (131072, (128001,))


def test_the_small_models_are_tied_and_the_large_ones_are_not() -> None:
    tied = {name for name in preset_names() if find_preset(name).config["tie_word_embeddings"]}
    assert {name for name in tied if name.endswith("-bf16")} == {
        "qwen3-0.6b-bf16",
        "qwen3-1.7b-bf16",
        "qwen3-4b-bf16",
    }


@pytest.mark.parametrize(
    ("weights", "algo"), [("bf16", None), ("fp8", "FP8_PER_TENSOR"), ("fp8-block", "FP8_BLOCK_SCALES")]
)
def test_weight_formats(weights: str, algo: str | None, tmp_path: Path) -> None:
    config = ModelConfig.from_pretrained(str(find_preset(f"qwen3-32b-{weights}").write(tmp_path)))
    assert (config.quantization.quant_algo if config.quantization else None) == algo


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no preset 'qwen3-8b'.*qwen3-8b-bf16"):
        find_preset("qwen3-8b")
    assert TINY not in preset_names()
