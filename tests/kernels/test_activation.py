"""Activations against float64, and their quantisation against that of their own output, as in test_rms_norm.py."""

import pytest
import torch

from tensorrt_lora.kernels.activation import (
    silu_and_mul,
    silu_and_mul_reference_into,
    silu_and_mul_triton,
    squared_relu,
)
from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_quantize import quantize_reference
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization
from tests.support.lora_deltas import ALL_SLOTS, added, make_lora_delta, random_output, same_bits
from tests.support.quantizations import QUANTIZATIONS, empty_uncast

DTYPES = [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]


@pytest.mark.parametrize("shape", [(1, 2), (3, 26), (0, 8), (5, 256), (2, 5000)])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_silu_of_the_first_half_times_the_second(shape: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    gate_up = (2 * torch.randn(shape)).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    actual, quantized = silu_and_mul(gate_up)
    assert actual.dtype == dtype and quantized is None
    torch.testing.assert_close(actual.double(), gate / (1 + torch.exp(-gate)) * up, rtol=tolerance, atol=tolerance)


def test_large_gates_and_strided_rows() -> None:
    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4]])
    gate_up = torch.cat((gate, torch.ones(1, 5), torch.zeros(1, 3)), dim=1)[:, :10]
    torch.testing.assert_close(silu_and_mul(gate_up)[0], gate.clamp(min=0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("width", [64, 100, 300, 5120])
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_quantised_is_the_output(
    dtype: torch.dtype, tokens: int, width: int, quantization: ActivationQuantization
) -> None:
    compute = silu_and_mul_triton if use_triton(torch.zeros(1)) else silu_and_mul_reference_into
    gate_up = torch.randn(tokens, 2 * width).to(dtype)
    gate_up *= torch.logspace(-2, 1, max(tokens, 1))[:tokens, None]
    expected, _ = silu_and_mul(gate_up)
    out = torch.empty_like(expected)
    actual, wanted = empty_uncast(out, quantization), empty_uncast(out, quantization)
    compute(gate_up, out, quantization, actual)
    assert torch.equal(out, expected)
    quantize_reference(out, wanted.values, wanted.scale, quantization.static_scale)
    assert torch.equal(actual.values, wanted.values) and torch.equal(actual.scale, wanted.scale)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_squared_relu(dtype: torch.dtype, tolerance: float) -> None:
    x = (2 * torch.randn(4, 9)).to(dtype)
    actual = squared_relu(x)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), x.double().clamp(min=0) ** 2, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("token_slots", [[], [-1], [2], [5], ALL_SLOTS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_delta_is_added_as_by_lora_add(dtype: torch.dtype, token_slots: list[int]) -> None:
    delta = make_lora_delta((300, 300), token_slots, dtype)
    gate_up = random_output(delta)
    before = gate_up.clone()
    expected, _ = silu_and_mul(added(delta, gate_up))
    actual, quantized = silu_and_mul(gate_up, delta=delta)
    assert same_bits(actual, expected) and quantized is None
    assert same_bits(gate_up, before)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("width", [1, 17, 64, 333, 2560])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_delta_before_a_quantisation(dtype: torch.dtype, width: int, quantization: ActivationQuantization) -> None:
    compute = silu_and_mul_triton if use_triton(torch.zeros(1)) else silu_and_mul_reference_into
    delta = make_lora_delta((width, width), ALL_SLOTS, dtype)
    gate_up = random_output(delta)
    expected, actual = torch.empty((2, len(ALL_SLOTS), width), dtype=dtype)
    wanted_fp8, actual_fp8 = empty_uncast(expected, quantization), empty_uncast(expected, quantization)
    compute(added(delta, gate_up), expected, quantization, wanted_fp8)
    compute(gate_up, actual, quantization, actual_fp8, delta)
    assert same_bits(actual, expected)
    assert same_bits(actual_fp8.values, wanted_fp8.values) and same_bits(actual_fp8.scale, wanted_fp8.scale)
