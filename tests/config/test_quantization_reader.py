import copy
import json
import re
from pathlib import Path
from typing import cast

import pytest

from tensorrt_lora.config.model_quantization import ModelQuantization
from tensorrt_lora.config.quantization_reader import read_quantization
from tests.support.fp8_checkpoints import LAYOUTS

ALGOS = {
    "compressed-tensors dynamic": "FP8_PER_TENSOR",
    "compressed-tensors channel": "FP8_PER_TENSOR",
    "compressed-tensors static": "FP8_STATIC",
    "compressed-tensors block": "FP8_BLOCK_SCALES",
    "modelopt file": "FP8_STATIC",
    "modelopt config": "FP8_STATIC",
    "qwen3 blocks": "FP8_BLOCK_SCALES",
    "autofp8 static": "FP8_STATIC",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_published_formats(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    if layout.modelopt_file is not None:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(layout.modelopt_file))
    quantization = read_quantization(layout.config, tmp_path)
    assert quantization is not None and quantization.in_checkpoint
    assert quantization.quant_algo == ALGOS[name]
    assert quantization.excludes("lm_head") and not quantization.excludes("model.layers.0.mlp.up_proj")


def test_no_quantisation(tmp_path: Path) -> None:
    assert read_quantization(None, tmp_path) is None
    assert read_quantization(None, None) is None


def compressed_tensors(**changes: object) -> dict[str, object]:
    """The dynamic format with `weights__num_bits=4` and the like changed."""
    fields = copy.deepcopy(cast(dict[str, object], LAYOUTS["compressed-tensors dynamic"].config))
    groups = cast(dict[str, dict[str, dict[str, object]]], fields["config_groups"])
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            groups["group_0"][section][key] = value
        else:
            fields[name] = value
    return fields


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "(gptq)"),
        ({"quant_method": "bitsandbytes"}, "(bitsandbytes)"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "(modelopt, quant_algo=NVFP4)"),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]},
            "(fp8, fmt=e4m3, weight_block_size=[64, 64], activation_scheme=dynamic)",
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]},
            "activation_scheme=static",
        ),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e5m2"}, "fmt=e5m2"),
        (compressed_tensors(weights__num_bits=4, weights__type="int"), "weights int4 tensor"),
        (compressed_tensors(input_activations__dynamic=False), "input_activations float8 token"),
        (compressed_tensors(weights__strategy="group"), "weights float8 group"),
        (compressed_tensors(weights__symmetric=False), "weights float8 asymmetric tensor"),
        (compressed_tensors(config_groups={}), "0 config_groups"),
        (compressed_tensors(sparsity_config={"format": "sparse-24"}), "sparsity_config"),
        (
            compressed_tensors(
                weights__strategy="block",
                weights__block_structure=[64, 128],
                input_activations__strategy="group",
                input_activations__group_size=128,
            ),
            "block_structure=[64, 128]",
        ),
    ],
)
def test_other_formats_are_refused_by_name(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=rf"the checkpoint is quantised .*{re.escape(named)}.* is not served: use"):
        read_quantization(fields, None)


def test_targets_other_than_linear_layers_are_refused() -> None:
    fields = compressed_tensors()
    cast(dict[str, dict[str, object]], fields["config_groups"])["group_0"]["targets"] = ["re:.*q_proj"]
    with pytest.raises(ValueError, match=r"targets=\['re:\.\*q_proj'\]"):
        read_quantization(fields, None)


@pytest.mark.parametrize(
    ("pattern", "excluded"),
    [
        ("model.layers.1.mlp.up_proj", {"model.layers.1.mlp.up_proj"}),
        ("up_proj", {"model.layers.1.mlp.up_proj", "model.layers.11.mlp.up_proj"}),
        ("model.layers.1", {"model.layers.1.mlp.up_proj", "model.layers.1.self_attn.o_proj"}),
        ("self_attn", {"model.layers.1.self_attn.o_proj"}),
        ("p_proj", set()),
        ("*o_proj", {"model.layers.1.self_attn.o_proj"}),
        ("model.layers.11*", {"model.layers.11.mlp.up_proj"}),
        (r"re:.*\.1\..*_proj$", {"model.layers.1.mlp.up_proj", "model.layers.1.self_attn.o_proj"}),
        ("re:up_proj", set()),
    ],
)
def test_excluded_names(pattern: str, excluded: set[str]) -> None:
    names = ("model.layers.1.mlp.up_proj", "model.layers.1.self_attn.o_proj", "model.layers.11.mlp.up_proj")
    quantization = ModelQuantization("FP8_PER_TENSOR", (pattern,))
    assert {name for name in names if quantization.excludes(name)} == excluded
