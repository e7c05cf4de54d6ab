"""Projections as read off the modules of every architecture, and where layers are stored differently."""

import pytest
import torch
from transformers import AutoConfig, PretrainedConfig

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.config.quant_config import QuantConfig
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.projection import Projection, find_projections

ARCHITECTURES = ["arcee", "llama", "mistral", "qwen2", "qwen3"]


def make_config(model_type: str) -> PretrainedConfig:
    return AutoConfig.for_model(
        model_type,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=64,
        max_position_embeddings=32,
    )


def projections(config: ModelConfig, dtype: torch.dtype = torch.bfloat16) -> list[Projection]:
    return find_projections(create_model(config, dtype=dtype, device=torch.device("meta"), attn_backend="VANILLA"))


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_of_every_architecture(model_type: str) -> None:
    found = projections(ModelConfig.from_hf(make_config(model_type)))
    fused = ("up", (384,)) if model_type == "arcee" else ("gate+up", (384, 384))
    assert [(projection.name, projection.output_sizes) for projection in found] == [
        ("q+k+v", (128, 64, 64)),
        ("o", (128,)),
        fused,
        ("down", (128,)),
    ]
    assert found[0].module_types[0] is LoraModuleType.ATTENTION_Q
    assert [projection.shape.in_features for projection in found] == [128, 128, 128, 384]
    assert [projection.weight_bytes for projection in found[:2]] == [128 * 256 * 2, 128 * 128 * 2]


def test_a_weight_that_some_layers_store_otherwise_counts_twice() -> None:
    quant_config = QuantConfig(quant_algo="FP8_PER_TENSOR", exclude_modules=["model.layers.1.self_attn.o_proj"])
    found = projections(ModelConfig.from_hf(make_config("llama")).with_quant_config(quant_config))
    assert [(p.name, p.itemsize) for p in found] == [("q+k+v", 1), ("o", 1), ("gate+up", 1), ("down", 1), ("o", 2)]
