"""Norms against float64, and their quantisation against that of their own output: by the references here, by the Triton
kernel under test_interpreter.py, where float8 is cast wrongly and values before the cast are looked at."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_quantize import quantize_reference
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.kernels.rms_norm import fused_add_rms_norm, rms_norm, rms_norm_reference_into, rms_norm_triton
from tests.support.lora_deltas import ALL_SLOTS, added, make_lora_delta, random_output, same_bits
from tests.support.quantizations import QUANTIZATIONS, empty_uncast

EPS = 1e-5
DTYPES = [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]


def expected_norm(x: Tensor, weight: Tensor) -> Tensor:
    x64 = x.double()
    return x64 / torch.sqrt(x64.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 64), (2, 6, 16), (0, 8), (3, 5120)])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_norm_of_each_row(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    x = (3 * torch.randn(shape)).to(dtype)
    weight = (1 + 0.3 * torch.randn(shape[-1])).to(dtype)
    actual, quantized = rms_norm(x, weight, EPS)
    assert actual.dtype == dtype and quantized is None
    torch.testing.assert_close(actual.double(), expected_norm(x, weight), rtol=tolerance, atol=tolerance)


def test_norm_leaves_its_input_and_takes_strided_rows() -> None:
    wide = torch.randn(4, 48)
    before = wide.clone()
    heads = wide[:, 16:32].view(4, 2, 8)
    weight = torch.randn(8)
    actual = rms_norm(heads, weight, EPS)[0].double()
    torch.testing.assert_close(actual, expected_norm(heads, weight), rtol=2e-6, atol=2e-6)
    assert torch.equal(wide, before)


def test_epsilon_bounds_the_norm_of_a_zero_row() -> None:
    x = torch.zeros(1, 8)
    x[0, 0] = 1e-4
    expected = 1e-4 / (1e-8 / 8 + EPS) ** 0.5
    assert rms_norm(x, torch.ones(8), EPS)[0][0, 0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fused_add_writes_the_sum_and_its_norm_in_place(dtype: torch.dtype) -> None:
    x, residual = torch.randn(3, 48).to(dtype)[:, 4:44], torch.randn(3, 40).to(dtype)
    weight = torch.randn(40).to(dtype)
    total = x + residual
    expected, _ = rms_norm(total, weight, EPS)
    assert fused_add_rms_norm(x, residual, weight, EPS) is None
    torch.testing.assert_close(residual, total, rtol=0, atol=0)
    torch.testing.assert_close(x, expected, rtol=0, atol=0)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("width", [64, 100, 300, 5120])
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_quantised_is_the_output(
    dtype: torch.dtype, tokens: int, width: int, quantization: ActivationQuantization
) -> None:
    normalize = rms_norm_triton if use_triton(torch.zeros(1)) else rms_norm_reference_into
    x, residual = torch.randn(2, tokens, width).to(dtype)
    x *= torch.logspace(-2, 2, max(tokens, 1))[:tokens, None]
    weight = (1 + 0.3 * torch.randn(width)).to(dtype)
    expected = x.clone()
    expected_residual = residual.clone()
    fused_add_rms_norm(expected, expected_residual, weight, EPS)
    actual, out = empty_uncast(x, quantization), torch.empty_like(x)
    normalize(x, residual, weight, EPS, out, quantization, actual)
    assert torch.equal(out, expected) and torch.equal(residual, expected_residual)
    wanted = empty_uncast(x, quantization)
    quantize_reference(out, wanted.values, wanted.scale, quantization.static_scale)
    assert torch.equal(actual.values, wanted.values) and torch.equal(actual.scale, wanted.scale)


@pytest.mark.skipif(use_triton(torch.zeros(1)), reason="the interpreter casts to float8 wrongly")
def test_quantised_rows_of_any_shape() -> None:
    x, weight = torch.randn(2, 3, 256), torch.randn(256)
    out, quantized = rms_norm(x, weight, EPS, ActivationQuantization(by_group=True))
    assert isinstance(quantized, QuantizedActivation) and quantized.scale.shape == (6, 2)
    torch.testing.assert_close(quantized.dequantize(), out.view(6, 256), rtol=2**-4, atol=2e-3)


@pytest.mark.parametrize("token_slots", [[], [-1], [2], [5], ALL_SLOTS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_delta_is_added_as_by_lora_add(dtype: torch.dtype, token_slots: list[int]) -> None:
    delta = make_lora_delta((300,), token_slots, dtype)
    x = random_output(delta)
    residual, weight = torch.randn(len(token_slots), 300).to(dtype), torch.randn(300).to(dtype)
    expected, expected_residual = added(delta, x), residual.clone()
    fused_add_rms_norm(expected, expected_residual, weight, EPS)
    assert fused_add_rms_norm(x, residual, weight, EPS, delta=delta) is None
    assert same_bits(residual, expected_residual) and same_bits(x, expected)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("width", [1, 17, 64, 333, 640])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_delta_before_a_quantisation(dtype: torch.dtype, width: int, quantization: ActivationQuantization) -> None:
    normalize = rms_norm_triton if use_triton(torch.zeros(1)) else rms_norm_reference_into
    delta = make_lora_delta((width,), ALL_SLOTS, dtype)
    x = random_output(delta)
    residual, weight = torch.randn(len(ALL_SLOTS), width).to(dtype), torch.randn(width).to(dtype)
    expected, expected_residual = added(delta, x), residual.clone()
    wanted, actual = empty_uncast(x, quantization), empty_uncast(x, quantization)
    normalize(expected, expected_residual, weight, EPS, expected, quantization, wanted)
    normalize(x, residual, weight, EPS, x, quantization, actual, delta)
    assert same_bits(residual, expected_residual) and same_bits(x, expected)
    assert same_bits(actual.values, wanted.values) and same_bits(actual.scale, wanted.scale)
