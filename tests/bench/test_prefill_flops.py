"""Arithmetic of a prefill, against a count by hand and the usual rule of two per weight and token."""

import pytest

from tensorrt_lora.bench.prefill_flops import prefill_flops
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.config.model_presets import find_preset


def config_of(preset: str, directory) -> ModelConfig:
    return ModelConfig.from_pretrained(str(find_preset(preset).write(directory / preset)))


def test_by_hand(tmp_path) -> None:
    hidden, intermediate, q, kv, layers, vocab = 256, 512, 256, 128, 2, 512
    weights = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * intermediate
    # Three and two tokens: 6 + 3 pairs, each with a product of q values for the score and one for the sum.
    expected = layers * (2 * 5 * weights + 4 * 9 * q) + 2 * 2 * hidden * vocab
    assert prefill_flops(config_of("tiny", tmp_path), [3, 2]) == expected


def test_of_8b(tmp_path) -> None:
    # 6.95e9 weights in the layers, and 4096 numbers a pair of tokens and layer.
    flops = prefill_flops(config_of("qwen3-8b-bf16", tmp_path), [8192])
    assert flops == pytest.approx(2 * 6.95e9 * 8192 + 36 * 4 * 4096 * 8192**2 / 2, rel=0.01)
