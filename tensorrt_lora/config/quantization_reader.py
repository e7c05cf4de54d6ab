"""From the quantisation formats of published checkpoints to ours.

Owns the translation of compressed-tensors, ModelOpt and Qwen3-FP8 configs. Called by `ModelConfig`. What is not
served is refused by the name that the checkpoint gives it. Must not know tensors.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from tensorrt_lora.config.model_quantization import ModelQuantization
from tensorrt_lora.config.quant_config import QuantAlgo

Fields = Mapping[str, object]

_MODELOPT_FILE = "hf_quant_config.json"
_BLOCK = [128, 128]


def read_quantization(fields: Fields | None, model_dir: Path | None) -> ModelQuantization | None:
    """How a checkpoint is quantised; None where it is not.

    Args:
        fields: `quantization_config` of its config.json, where there is one.
        model_dir: its directory, where older ModelOpt checkpoints have a file of their own.

    Raises:
        ValueError: the format is not served.
    """
    if fields is None:
        file = None if model_dir is None else model_dir / _MODELOPT_FILE
        if file is None or not file.is_file():
            return None
        return _read_modelopt(json.loads(file.read_text(encoding="utf-8"))["quantization"])
    method = fields.get("quant_method")
    if method == "compressed-tensors":
        return _read_compressed_tensors(fields)
    if method == "fp8":
        return _read_fp8(fields)
    if method == "modelopt":
        return _read_modelopt(fields)
    raise _refusal(str(method))


def _refusal(what: str) -> ValueError:
    return ValueError(
        f"the checkpoint is quantised ({what}), which is not served: use one in FP8 (compressed-tensors, ModelOpt, or "
        "128 x 128 blocks as Qwen3-FP8), or one in bfloat16 with quant_config"
    )


def _read_compressed_tensors(fields: Fields) -> ModelQuantization:
    """Source: the `quantization_config` that llm-compressor writes."""
    for extra in ("sparsity_config", "transform_config"):
        if fields.get(extra):
            raise _refusal(f"compressed-tensors, {extra}={fields[extra]}")
    groups = _mapping(fields.get("config_groups"))
    if len(groups) != 1:
        raise _refusal(f"compressed-tensors with {len(groups)} config_groups")
    group = _mapping(next(iter(groups.values())))
    if group.get("targets") != ["Linear"]:
        raise _refusal(f"compressed-tensors, targets={group.get('targets')}")
    weights, inputs = _mapping(group.get("weights")), _mapping(group.get("input_activations"))
    scheme = (_scheme(weights), _scheme(inputs))
    algo = _COMPRESSED_TENSORS_SCHEMES.get(scheme)
    block = weights.get("block_structure")
    if algo is None or (algo == "FP8_BLOCK_SCALES" and (block != _BLOCK or inputs.get("group_size") != 128)):
        described = f"weights {scheme[0]}, input_activations {scheme[1]}"
        raise _refusal(f"compressed-tensors, format={fields.get('format')}, {described}, block_structure={block}")
    return ModelQuantization(algo, _names(fields.get("ignore")), in_checkpoint=True)


# Weights of one scale and weights of one per row are stored alike here. Activations that are scaled by the whole step
# as it comes are scaled by token, which is finer and does not let requests change each other.
_COMPRESSED_TENSORS_SCHEMES: dict[tuple[str, str], QuantAlgo] = {
    ("float8 tensor", "float8 dynamic token"): "FP8_PER_TENSOR",
    ("float8 tensor", "float8 dynamic tensor"): "FP8_PER_TENSOR",
    ("float8 channel", "float8 dynamic token"): "FP8_PER_TENSOR",
    ("float8 tensor", "float8 tensor"): "FP8_STATIC",
    ("float8 channel", "float8 tensor"): "FP8_STATIC",
    ("float8 block", "float8 dynamic group"): "FP8_BLOCK_SCALES",
}


def _scheme(arguments: Fields) -> str:
    """ "float8 dynamic token" for the quantisation arguments of weights or activations; "none" for none."""
    if not arguments:
        return "none"
    symmetric = "" if arguments.get("symmetric", True) else " asymmetric"
    dynamic = " dynamic" if arguments.get("dynamic") else ""
    return f"{arguments.get('type')}{arguments.get('num_bits')}{symmetric}{dynamic} {arguments.get('strategy')}"


def _read_fp8(fields: Fields) -> ModelQuantization:
    """Source: `FineGrainedFP8Config` of transformers (Qwen3-FP8), and AutoFP8, which has no blocks."""
    block, scheme, fmt = fields.get("weight_block_size"), fields.get("activation_scheme"), fields.get("fmt", "e4m3")
    algo: QuantAlgo
    if fmt == "e4m3" and block is not None and list(_sequence(block)) == _BLOCK and scheme == "dynamic":
        algo = "FP8_BLOCK_SCALES"
    elif fmt == "e4m3" and block is None and scheme in ("dynamic", "static"):
        algo = "FP8_STATIC" if scheme == "static" else "FP8_PER_TENSOR"
    else:
        raise _refusal(f"fp8, fmt={fmt}, weight_block_size={block}, activation_scheme={scheme}")
    excluded = _names(fields.get("modules_to_not_convert")) + _names(fields.get("ignored_layers"))
    return ModelQuantization(algo, excluded, in_checkpoint=True)


def _read_modelopt(fields: Fields) -> ModelQuantization:
    """Source: ModelOpt's hf_quant_config.json, or what newer versions write to config.json."""
    if fields.get("quant_algo") != "FP8":
        raise _refusal(f"modelopt, quant_algo={fields.get('quant_algo')}")
    excluded = _names(fields.get("exclude_modules")) + _names(fields.get("ignore"))
    return ModelQuantization("FP8_STATIC", excluded, in_checkpoint=True)


def _mapping(value: object) -> Fields:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(name) for name in _sequence(value))
