import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.modules.rotary_embedding import RotaryEmbedding

CPU = torch.device("cpu")
HEAD_DIM = 16
ROPES: dict[str, dict[str, object]] = {
    "default": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "short_factor": [1.0 + 0.1 * i for i in range(HEAD_DIM // 2)],
        "long_factor": [2.0 + 0.1 * i for i in range(HEAD_DIM // 2)],
        "original_max_position_embeddings": 64,
    },
}


def make_config(rope: dict[str, object]) -> ModelConfig:
    hf_config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        max_position_embeddings=256,
        rope_parameters=dict(rope),
    )
    return ModelConfig.from_hf(hf_config, None)


@pytest.mark.parametrize("name", ROPES)
def test_table_equals_transformers(name: str) -> None:
    config = make_config(ROPES[name])
    positions = 64 if name == "longrope" else 256
    rotary = RotaryEmbedding(config=config, max_positions=positions, device=CPU)
    reference = LlamaRotaryEmbedding(config.hf_config)
    cos, sin = reference(torch.zeros(1), torch.arange(positions)[None])
    half = HEAD_DIM // 2
    assert rotary.cos_sin_cache.shape == (positions, HEAD_DIM)
    torch.testing.assert_close(rotary.cos_sin_cache[:, :half], cos[0, :, :half], rtol=0, atol=1e-6)
    torch.testing.assert_close(rotary.cos_sin_cache[:, half:], sin[0, :, :half], rtol=0, atol=1e-6)
    assert not rotary.state_dict()


@pytest.mark.parametrize(("name", "limit"), [("dynamic", 256), ("longrope", 64)])
def test_frequencies_that_would_change_are_refused(name: str, limit: int) -> None:
    message = f"rope type '{name}' changes its frequencies beyond {limit} positions.*at most {limit} .it is 257"
    with pytest.raises(ValueError, match=message):
        RotaryEmbedding(config=make_config(ROPES[name]), max_positions=257, device=CPU)


def test_partial_rotation_is_refused() -> None:
    rope = {**ROPES["linear"], "partial_rotary_factor": 0.5}
    with pytest.raises(ValueError, match="covers 8 of 16 head dimensions; partial rotary embedding"):
        RotaryEmbedding(config=make_config(rope), max_positions=32, device=CPU)


def test_unknown_type_is_refused() -> None:
    config = make_config(ROPES["default"])
    config.rope_parameters["rope_type"] = "spiral"
    with pytest.raises(ValueError, match="rope type 'spiral' is not supported; supported: default, dynamic"):
        RotaryEmbedding(config=config, max_positions=32, device=CPU)
