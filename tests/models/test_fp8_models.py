"""FP8 models on the CPU: published checkpoints arrive bit for bit, and their scales are where they belong.

Rounding activations is chaotic: one value that falls on the other side moves everything behind it by as much as the
rounding itself. So projections are compared one by one with the input that they had, and whole models with the
dequantised model by the mean difference of log-probabilities: about 0.22 on these models, whose logits have a deviation
of 3; `LOGPROB_BOUND` allows for half as much again, and a doubled scale exceeds it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.lora.layer import BaseProjection
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.checkpoint_loader import load_weights
from tensorrt_lora.models.dequantized_parameters import DequantizedParameters
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tensorrt_lora.modules.linear import Linear
from tests.support.fp8_checkpoints import LAYOUTS, named_projections, save_fp8_checkpoint
from tests.support.paged_forward import PagedForward

LOGPROB_BOUND = 0.33
CPU = torch.device("cpu")
TOKENS = torch.randint(0, 256, (48,), generator=torch.Generator().manual_seed(0)).tolist()


def load(directory: Path, dtype: torch.dtype = torch.float32) -> DecoderModelForCausalLM:
    config = ModelConfig.from_pretrained(str(directory))
    model = create_model(config, dtype=dtype, device=CPU, attn_backend="VANILLA")
    for parameter in model.parameters():
        parameter.copy_(torch.full(parameter.shape, torch.nan))
    load_weights(model, config)
    return model


def logprobs(model: DecoderModelForCausalLM) -> Tensor:
    return PagedForward(model).step({"a": TOKENS})["a"].log_softmax(-1)


@torch.inference_mode()
def dequantized_logprobs(reference: PreTrainedModel) -> Tensor:
    """Of the reference without its rounding of activations."""
    for _, module in named_projections(reference):
        module._forward_pre_hooks.clear()
    return reference(torch.tensor([TOKENS])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_are_those_of_the_checkpoint(layout: str, family: str, tmp_path: Path) -> None:
    reference = save_fp8_checkpoint(tmp_path, layout, family=family)
    model = load(tmp_path)
    ours = DequantizedParameters(model)
    for name, parameter in reference.named_parameters():
        assert torch.equal(ours[name], parameter), name
    quantized = [module for module in model.modules() if isinstance(module, Linear)]
    assert {module.weight.dtype for module in quantized} == {torch.float8_e4m3fn}
    assert model.lm_head.weight.dtype is torch.float32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_projection_rounds_its_input_as_the_checkpoint_says(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = dict(named_projections(save_fp8_checkpoint(tmp_path, layout)))
    model = load(tmp_path)
    calls: list[tuple[Linear, Tensor, QuantizedActivation | None]] = []

    def record(linear: Linear, x: Tensor, quantized: QuantizedActivation | None = None) -> BaseProjection:
        calls.append((linear, x.clone(), quantized))
        return base(linear, x, quantized)

    base = Linear.base
    monkeypatch.setattr(Linear, "base", record)
    PagedForward(model).step({"a": TOKENS})
    names = {module: name for name, module in model.named_modules()}
    assert len(calls) == 8
    for linear, x, quantized in calls:
        parts = [name for name, _ in linear.parts(names[linear])]
        with torch.inference_mode():
            expected = torch.cat([reference[part](x) for part in parts], dim=-1)
        torch.testing.assert_close(base(linear, x, quantized)(), expected, rtol=1e-4, atol=1e-4)
    in_passing = [names[linear].rpartition(".")[2] for linear, _, quantized in calls if quantized is not None]
    assert in_passing == ["qkv_proj", "gate_up_proj", "down_proj"] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logprobs_are_near_those_of_the_dequantised_model(layout: str, dtype: torch.dtype, tmp_path: Path) -> None:
    reference = save_fp8_checkpoint(tmp_path, layout)
    difference = (logprobs(load(tmp_path, dtype)) - dequantized_logprobs(reference)).abs()
    assert 0.05 < difference.mean() < LOGPROB_BOUND


def wrong_scales(model: DecoderModelForCausalLM) -> Iterator[str]:
    """Makes one scale wrong at a time: of weights twice as large, of activations so small that they are cut off."""
    for path, module in model.named_modules():
        if not isinstance(module, Linear):
            continue
        changes: list[tuple[str, Tensor, float]] = []
        if module.input_scale is not None:
            changes.append((f"{path} input", module.input_scale, 1 / 16))
        for part, rows in module.parts(path):
            assert module.weight_scale is not None
            if module.weight_scale.dim() == 1:
                changes.append((part, module.weight_scale[rows], 2.0))
            else:
                blocks = range(rows.start // 128, rows.stop // 128 or 1)
                changes += [(f"{part} block row {row}", module.weight_scale[row], 2.0) for row in blocks]
        for name, scale, factor in changes:
            right = scale.clone()
            scale.mul_(factor)
            yield name
            scale.copy_(right)


@pytest.mark.parametrize("layout", ["compressed-tensors dynamic", "compressed-tensors static", "qwen3 blocks"])
def test_the_bound_fails_when_a_scale_is_wrong(layout: str, tmp_path: Path) -> None:
    """On a Llama: behind Qwen3's head norms a scale of queries or keys changes nothing."""
    expected = dequantized_logprobs(save_fp8_checkpoint(tmp_path, layout))
    model = load(tmp_path)
    names = []
    for name in wrong_scales(model):
        names.append(name)
        assert (logprobs(model) - expected).abs().mean() > LOGPROB_BOUND, name
    assert len(names) >= 14  # seven projections in each of two layers
    assert (logprobs(model) - expected).abs().mean() < LOGPROB_BOUND
