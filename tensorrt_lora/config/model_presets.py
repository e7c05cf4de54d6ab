"""Published model shapes by name, for runs with dummy weights.

Owns the hyper-parameters of the models' own config.json files, and how their weights are stored. Used by the
benchmarks, which write a preset to a directory and load that like any checkpoint. Knows no weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """One model in one weight format. `config` is the content of its config.json."""

    name: str
    config: dict[str, object]

    def write(self, directory: Path) -> Path:
        """Write config.json, which is all that `load_format="dummy"` needs; returns the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.config, indent=2) + "\n"
        (directory / "config.json").write_text(text, encoding="utf-8")
        return directory


def preset_names() -> tuple[str, ...]:
    """The presets that users are offered."""
    return tuple(f"{shape}-{weights}" for shape in _SHAPES for weights in _WEIGHT_FORMATS)


def find_preset(name: str) -> ModelPreset:
    """The preset of this name. Raises ValueError naming those that there are."""
    if name == TINY:
        return ModelPreset(name, {**_TINY_SHAPE, **_WEIGHT_FORMATS["bf16"]})
    for shape, fields in _SHAPES.items():
        for weights, more in _WEIGHT_FORMATS.items():
            if name == f"{shape}-{weights}":
                return ModelPreset(name, {**fields, **more})
    raise ValueError(f"there is no preset {name!r}: use one of {', '.join(preset_names())}")


# Per-tensor weights and per-token activations, as llm-compressor's FP8 checkpoints say it.
_FP8: dict[str, object] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": False},
            "input_activations": {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True},
        }
    },
    "ignore": ["lm_head"],
}
# As Qwen3-FP8 has it.
_FP8_BLOCK: dict[str, object] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}
# How weights are stored, by the last part of a preset's name. A quantised format adds its
# `quantization_config`, as published checkpoints do.
_WEIGHT_FORMATS: dict[str, dict[str, object]] = {
    "bf16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "bfloat16", "quantization_config": _FP8},
    "fp8-block": {"dtype": "bfloat16", "quantization_config": _FP8_BLOCK},
}


def _qwen3(
    hidden_size: int,
    intermediate_size: int,
    *,
    num_layers: int,
    num_heads: int,
    tied: bool,
    num_kv_heads: int = 8,
    vocab_size: int = 151936,
) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "max_position_embeddings": 40960,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    }


_LLAMA_3_1_8B: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}

_SHAPES: dict[str, dict[str, object]] = {
    "qwen3-0.6b": _qwen3(1024, 3072, num_layers=28, num_heads=16, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, num_layers=28, num_heads=16, tied=True),
    "qwen3-4b": _qwen3(2560, 9728, num_layers=36, num_heads=32, tied=True),
    "qwen3-8b": _qwen3(4096, 12288, num_layers=36, num_heads=32, tied=False),
    "qwen3-14b": _qwen3(5120, 17408, num_layers=40, num_heads=40, tied=False),
    "qwen3-32b": _qwen3(5120, 25600, num_layers=64, num_heads=64, tied=False),
    "llama-3.1-8b": _LLAMA_3_1_8B,
}

TINY = "tiny"
"""Not a model: every code path in seconds on a CPU. Left out of `preset_names`."""

_TINY_SHAPE: dict[str, object] = {
    **_qwen3(256, 512, num_layers=2, num_heads=2, num_kv_heads=1, tied=False, vocab_size=512),
    "bos_token_id": 510,
    "eos_token_id": 511,
}
