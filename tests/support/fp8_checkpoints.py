"""Tiny FP8 checkpoints in the layouts that are published, each with a transformers model that computes the same.

The arithmetic here is written apart from the package's. Sizes fit blocks of 128 rows; the hidden size is one and a half
blocks on purpose.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.support.tiny_models import make_tiny_model

SHAPE: dict[str, object] = {
    "hidden_size": 192,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
INPUT_SCALE = 12.0 / 448
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Layout:
    """One published format: how it says so, what it stores, and what the activations become.

    Attributes:
        config: `quantization_config` of config.json, or None.
        modelopt_file: content of hf_quant_config.json, or None.
        weight: unquantised weight -> (stored values, stored scale).
        scale_name: what the scale is called.
        static: whether there is an input_scale.
        groups: whether activations are scaled by groups of 128, else by token.
    """

    config: dict[str, object] | None
    modelopt_file: dict[str, object] | None
    weight: Callable[[Tensor], tuple[Tensor, Tensor]]
    scale_name: str = "weight_scale"
    static: bool = False
    groups: bool = False


def _compressed_tensors(weights: dict[str, object], inputs: dict[str, object]) -> dict[str, object]:
    common = {"num_bits": 8, "type": "float", "symmetric": True, "group_size": None, "block_structure": None}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "dynamic": False, "observer": "minmax", **weights},
        "input_activations": {**common, "observer": None, **inputs},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def _by_tensor(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight.abs().max() / 448
    return (weight / scale).to(FP8), scale


def _by_tensor_in_one_element(weight: Tensor) -> tuple[Tensor, Tensor]:
    values, scale = _by_tensor(weight)
    return values, scale.reshape(1)


def _by_channel(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    return (weight / scale.float()).clamp(-448, 448).to(FP8), scale


def _by_block(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The scale is stored in bfloat16, as Qwen3-FP8 has it."""
    rows, columns = -(-weight.shape[0] // 128), -(-weight.shape[1] // 128)
    scale = torch.empty(rows, columns, dtype=torch.bfloat16)
    values = torch.empty(weight.shape, dtype=FP8)
    for i in range(rows):
        for j in range(columns):
            block = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scale[i, j] = weight[block].abs().max() / 448
            values[block] = (weight[block] / scale[i, j].float()).clamp(-448, 448).to(FP8)
    return values, scale


_QWEN3_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"],
}
_MODELOPT = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
_DYNAMIC_TOKEN = {"dynamic": True, "strategy": "token"}

LAYOUTS: dict[str, Layout] = {
    "compressed-tensors dynamic": Layout(
        _compressed_tensors({"strategy": "tensor"}, _DYNAMIC_TOKEN), None, _by_tensor_in_one_element
    ),
    "compressed-tensors channel": Layout(
        _compressed_tensors({"strategy": "channel"}, _DYNAMIC_TOKEN), None, _by_channel
    ),
    "compressed-tensors static": Layout(
        _compressed_tensors({"strategy": "tensor"}, {"dynamic": False, "strategy": "tensor"}),
        None,
        _by_tensor_in_one_element,
        static=True,
    ),
    "compressed-tensors block": Layout(
        _compressed_tensors(
            {"strategy": "block", "block_structure": [128, 128]},
            {"dynamic": True, "strategy": "group", "group_size": 128},
        ),
        None,
        _by_block,
        groups=True,
    ),
    "modelopt file": Layout(
        None, {"producer": {"name": "modelopt"}, "quantization": _MODELOPT}, _by_tensor, static=True
    ),
    "modelopt config": Layout({"quant_method": "modelopt", **_MODELOPT}, None, _by_tensor, static=True),
    "qwen3 blocks": Layout(_QWEN3_FP8, None, _by_block, scale_name="weight_scale_inv", groups=True),
    "autofp8 static": Layout(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        None,
        _by_tensor,
        static=True,
    ),
}


def save_fp8_checkpoint(
    directory: Path,
    layout_name: str,
    *,
    family: str = "llama",
    dtype: torch.dtype = torch.bfloat16,
    overrides: dict[str, object] | None = None,
) -> PreTrainedModel:
    """Write a checkpoint; returns the float32 model that it stands for, with activations rounded as it says.

    Projections of one block differ in scale, so that a scale in the wrong place is seen.
    """
    layout = LAYOUTS[layout_name]
    model = make_tiny_model(family, overrides=SHAPE | (overrides or {}))
    tensors: dict[str, Tensor] = {}
    projections = dict(named_projections(model))
    with torch.no_grad():
        for name, module in projections.items():
            module.weight.mul_(_SIZES.get(name.rpartition(".")[2], 1.0))
            values, scale = layout.weight(module.weight)
            tensors |= {f"{name}.weight": values, f"{name}.{layout.scale_name}": scale}
            if layout.static:
                tensors[f"{name}.input_scale"] = torch.tensor(INPUT_SCALE)
            if layout is LAYOUTS["modelopt file"] and name.endswith(("k_proj", "v_proj")):
                tensors[f"{name}.{name[-6]}_scale"] = torch.tensor(1.0)
            module.weight.copy_(_dequantized(values, scale.float()))
            module.register_forward_pre_hook(_RoundInput(layout))
        for name, parameter in model.named_parameters():
            if name not in tensors:
                parameter.copy_(parameter.to(dtype))
                tensors[name] = parameter.to(dtype)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {**model.config.to_dict(), "architectures": [type(model).__name__], "dtype": str(dtype).split(".")[1]}
    if layout.config is not None:
        config["quantization_config"] = layout.config
    (directory / "config.json").write_text(json.dumps(config))
    if layout.modelopt_file is not None:
        (directory / "hf_quant_config.json").write_text(json.dumps(layout.modelopt_file))
    return model


_SIZES = {"k_proj": 0.5, "v_proj": 1.7, "up_proj": 0.6, "gate_proj": 1.5}


def named_projections(model: PreTrainedModel) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers of the decoder layers."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and ".layers." in name:
            yield name, module


def round_weights_by_tensor(model: PreTrainedModel) -> PreTrainedModel:
    """`model` with its projections' weights as float8 with one scale each, and back; in place."""
    with torch.no_grad():
        for _, module in named_projections(model):
            module.weight.copy_(_dequantized(*_by_tensor(module.weight)))
    return model


def _dequantized(values: Tensor, scale: Tensor) -> Tensor:
    if scale.dim() == 2 and scale.shape[1] > 1:
        rows, columns = values.shape
        scale = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    return values.float() * scale


class _RoundInput:
    """A forward hook: the input as float8 and back."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __call__(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        (x,) = args
        if self._layout.static:
            return (_round(x, torch.tensor(INPUT_SCALE)),)
        parts = x.split(128 if self._layout.groups else x.shape[-1], dim=-1)
        scales = [part.abs().amax(-1, keepdim=True).clamp(min=1e-12) * (1 / 448) for part in parts]
        return (torch.cat([_round(part, scale) for part, scale in zip(parts, scales, strict=True)], -1),)


def _round(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).clamp(-448, 448).to(FP8).float() * scale
