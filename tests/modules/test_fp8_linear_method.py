"""One FP8 layer: what it holds, what it computes, and that LoRA reads its input unrounded."""

from typing import cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tensorrt_lora.kernels.fp8_quantize import quantize
from tensorrt_lora.lora.fp8_base_projection import Fp8BaseProjection
from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.fp8_linear_method import Fp8BlockLinearMethod, Fp8LinearMethod
from tensorrt_lora.modules.linear import Linear
from tensorrt_lora.modules.linear_method import LinearMethod
from tests.support.merged_lora import patch_lora

IN, PARTS = 200, (("q_proj", 128), ("k_proj", 64))
OUT = 192
METHODS: dict[str, LinearMethod] = {
    "dynamic": Fp8LinearMethod(static_activations=False, in_checkpoint=False),
    "static": Fp8LinearMethod(static_activations=True, in_checkpoint=False),
    "blocks": Fp8BlockLinearMethod(in_checkpoint=False),
}


def make_linear(method: str, *, bias: bool = False, dtype: torch.dtype = torch.float32) -> Linear:
    layer = LoraLayer(
        module_types=(LoraModuleType.ATTENTION_DENSE,), hf_names=("x",), in_features=IN, output_sizes=(OUT,)
    )
    linear = Linear(
        in_features=IN,
        out_features=OUT,
        bias=bias,
        dtype=dtype,
        device=torch.device("cpu"),
        lora=layer,
        checkpoint_parts=PARTS,
        method=METHODS[method],
    )
    weight = torch.randn(OUT, IN)
    weight[:128] *= 100  # a part of much larger values
    linear.set_weight(weight)
    if linear.bias is not None:
        linear.bias.normal_()
    return linear


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_output_is_near_the_dequantised_product(method: str, dtype: torch.dtype, bias: bool) -> None:
    """Rounding to three bits moves a product by 2.6 percent in the mean; each part has a scale of its own."""
    linear = make_linear(method, dtype=dtype, bias=bias)
    x = torch.randn(7, IN).to(dtype)
    y = linear.base(x)()
    assert y.dtype is dtype and y.shape == (7, OUT)
    weight = linear.dequantized_weight()
    assert weight.dtype is dtype and weight.shape == (OUT, IN)
    expected = functional.linear(x.float(), weight.float(), None if linear.bias is None else linear.bias.float())
    for columns in (slice(0, 128), slice(128, OUT)):
        error = (y[:, columns].float() - expected[:, columns]).norm() / expected[:, columns].norm()
        assert 0.005 < error < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_parts_keep_scales_of_their_own(method: str) -> None:
    linear = make_linear(method)
    assert linear.weight.dtype is torch.float8_e4m3fn
    assert linear.weight[:128].float().abs().max() == linear.weight[128:].float().abs().max() == 448
    assert linear.weight_scale is not None
    assert linear.weight_scale.shape == ((2, 2) if method == "blocks" else (OUT,))
    assert (linear.input_scale is None) == (method != "static")
    part = linear.dequantized_weight(slice(128, OUT))
    assert torch.equal(part, linear.dequantized_weight()[128:])


@pytest.mark.parametrize("method", METHODS)
def test_base_projection_is_open_to_a_fused_plan(method: str) -> None:
    linear = make_linear(method)
    x = torch.randn(2, 3, IN)
    base = linear.base(x)
    assert isinstance(base, Fp8BaseProjection)
    assert base.x is x and base.weight.values is linear.weight and base.weight.scale is linear.weight_scale
    quantized = base.base_input()
    assert quantized.values.shape == (6, IN) and quantized.values.dtype is torch.float8_e4m3fn
    torch.testing.assert_close(quantized.dequantize(), x.reshape(6, IN), rtol=2**-4, atol=1e-3)
    assert base().shape == (2, 3, OUT)
    assert base().data_ptr() != base().data_ptr()


@pytest.mark.parametrize("method", METHODS)
def test_an_input_quantised_in_front_is_not_quantised_again(method: str) -> None:
    linear, x = make_linear(method), torch.randn(5, IN)
    assert linear.input_quantization is not None
    quantized = quantize(x, linear.input_quantization)
    assert linear.base(x, quantized).base_input() is quantized
    expected = linear.base(x)()
    assert torch.equal(linear.base(x, quantized)(), expected)
    assert torch.equal(linear(x, None, 0, quantized), expected)
    quantized.scale.mul_(2)
    torch.testing.assert_close(linear(x, None, 0, quantized), 2 * expected)


@pytest.mark.parametrize("method", METHODS)
def test_lora_reads_the_input_unrounded(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    linear, x, delta = make_linear(method), torch.randn(5, IN), torch.randn(OUT, IN)
    params = cast(LoraParams, {})
    base = linear.base(x)()
    patch_lora(monkeypatch, {("x",): delta}, params, 7)
    torch.testing.assert_close(linear(x, params, 7), base + x @ delta.T, rtol=1e-5, atol=1e-3)


def test_scale_of_one_token_does_not_depend_on_the_others() -> None:
    linear, x = make_linear("dynamic"), torch.randn(3, IN)
    alone: Tensor = linear.base(x[:1])()
    x[1:] *= 1000
    torch.testing.assert_close(linear.base(x)()[:1], alone, rtol=1e-5, atol=1e-4)
