"""Quantisation on a GPU: the bits of its references."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.fp8_quantize import (
    quantize_per_group,
    quantize_per_token,
    quantize_reference,
    quantize_static,
)
from tensorrt_lora.kernels.fp8_weight import FP8_DTYPE
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")


def reference_quantize(x: Tensor, groups: int, static_scale: Tensor | None) -> QuantizedActivation:
    values = torch.empty(x.shape, dtype=FP8_DTYPE, device=x.device)
    scale = torch.empty((groups, x.shape[0]), device=x.device).t()
    quantize_reference(x, values, scale, static_scale)
    return QuantizedActivation(values, scale)


def assert_same_bits(actual: QuantizedActivation, expected: QuantizedActivation) -> None:
    assert torch.equal(actual.scale, expected.scale)
    assert torch.equal(actual.values.view(torch.uint8), expected.values.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [12, 72, 128, 1536, 5120, 12288, 25600])
@pytest.mark.parametrize("rows", [0, 1, 7, 64, 1000])
def test_quantisation_has_the_bits_of_its_reference(rows: int, width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn((rows, width + 8), device=DEVICE, generator=generator) * 3
    x = (x * torch.logspace(-3, 3, rows, device=DEVICE)[:, None]).to(dtype)[:, :width]
    if rows > 1:
        x[0] = 0
    scale = torch.tensor(0.02, device=DEVICE)
    assert_same_bits(quantize_per_token(x), reference_quantize(x, 1, None))
    assert_same_bits(quantize_per_group(x), reference_quantize(x, -(-width // 128), None))
    assert_same_bits(quantize_static(x, scale), reference_quantize(x, 1, scale))


def test_every_bfloat16_value_is_rounded_as_torch_rounds_it() -> None:
    values = torch.arange(2**16, dtype=torch.int32, device=DEVICE).to(torch.int16).view(torch.bfloat16)
    x = torch.where(values.abs() <= 448, values, 0).view(256, 256)
    one = torch.ones((), device=DEVICE)
    assert_same_bits(quantize_static(x, one), reference_quantize(x, 1, one))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_token_stays_broken_and_alone(broken: float) -> None:
    x = torch.randn((3, 5120), device=DEVICE).bfloat16()
    x[1, 77] = broken
    for quantized in (quantize_per_token(x), quantize_per_group(x)):
        finite = quantized.dequantize().isfinite().all(dim=1)
        assert finite.tolist() == [True, False, True]
