"""LoRA inside SiLU-and-mul against float64, token by token, and its quantisation against that of its own output."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_quantize import quantize_reference
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, DECODE_TILE_SIZE, GAIN_ROW, LoraBatch, LoraTables
from tensorrt_lora.kernels.lora_silu_and_mul import (
    lora_silu_and_mul,
    lora_silu_and_mul_reference_into,
    lora_silu_and_mul_triton,
)
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization
from tests.support.lora_tables import expand_by_token, make_lora_batch, make_lora_tables
from tests.support.quantizations import QUANTIZATIONS, empty_uncast

INTERPRETED = use_triton(torch.zeros(1))
BOTH = BIAS_ROW | GAIN_ROW
# float32 sums, roundings of h, delta, sum, silu and product; each of the last may be of values a few times the result.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-2}

# width, ranks of gate and of up, extras, slot of each token
CASES = [
    (64, [[3], [1]], None, []),
    (130, [[17], [17]], None, [0]),
    (130, [[3], [3]], None, [-1]),
    (96, [[3, 64], [0, 1]], None, [1, -1, 0]),
    (300, [[17, 0], [64, 0]], None, [1, 0, 1]),
    (128, [[100, 3], [1, 100]], None, [0, 1, -1] * 5 + [0, 0]),
    (65, [[17, 64, 1], [0, 3, 100]], None, [0] * 19 + [2, -1, 1] * 7),
    (130, [[1, 64, 17, 0], [3, 64, 0, 0]], None, [2, -1, 0, 3, 1] * 8),
    (130, [[3, 8, 0, 2], [17, 0, 0, 2]], [[BIAS_ROW, GAIN_ROW, BOTH, 0], [BOTH, 0, BIAS_ROW, 0]], [1, -1, 0, 2, 3]),
    (72, [[16, 15, 100], [0, 32, 1]], [[BOTH, BOTH, BIAS_ROW], [0, BOTH, GAIN_ROW]], [0, 2, 1, -1] * 5),
]


def make_case(
    width: int, ranks: list[list[int]], extras: list[list[int]] | None, token_slots: list[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, LoraTables, LoraBatch]:
    """The op's arguments; what h has beyond the ranks, and for base rows, is NaN."""
    tables = make_lora_tables(in_features=1, output_sizes=(width, width), ranks=ranks, extras=extras, dtype=dtype)
    tables.scale.fill_(torch.nan)  # h is scaled
    h = torch.full((2, len(token_slots), tables.max_rank), torch.nan)
    for token, slot in enumerate(token_slots):
        for module in range(2 if slot >= 0 else 0):
            rank = ranks[module][slot]
            h[module, token, :rank] = torch.randn(rank)
    batch = make_lora_batch(token_slots, len(ranks[0]), tile_size=DECODE_TILE_SIZE)
    return torch.randn(len(token_slots), 2 * width).to(dtype), h.to(dtype), tables, batch


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("width", "ranks", "extras", "token_slots"), CASES)
def test_every_token_against_float64(
    width: int, ranks: list[list[int]], extras: list[list[int]] | None, token_slots: list[int], dtype: torch.dtype
) -> None:
    gate_up, h, tables, batch = make_case(width, ranks, extras, token_slots, dtype)
    before = gate_up.clone()
    actual, quantized = lora_silu_and_mul(gate_up, h, tables, batch)
    assert torch.equal(gate_up, before) and quantized is None and actual.dtype == dtype
    tables.scale.fill_(1.0)
    gate, up = expand_by_token(h, tables, token_slots, gate_up).chunk(2, dim=-1)
    expected = gate / (1 + torch.exp(-gate)) * up
    torch.testing.assert_close(actual.double(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize(("width", "ranks", "extras", "token_slots"), CASES)
def test_what_is_quantised_is_the_output(
    width: int,
    ranks: list[list[int]],
    extras: list[list[int]] | None,
    token_slots: list[int],
    quantization: ActivationQuantization,
) -> None:
    compute = lora_silu_and_mul_triton if INTERPRETED else lora_silu_and_mul_reference_into
    arguments = make_case(width, ranks, extras, token_slots, torch.float32)
    expected, _ = lora_silu_and_mul(*arguments)
    out = torch.empty_like(expected)
    actual, wanted = empty_uncast(out, quantization), empty_uncast(out, quantization)
    compute(*arguments, out, quantization, actual)
    assert torch.equal(out, expected)
    quantize_reference(out, wanted.values, wanted.scale, quantization.static_scale)
    assert torch.equal(actual.values, wanted.values) and torch.equal(actual.scale, wanted.scale)


def test_strided_rows() -> None:
    gate_up, h, tables, batch = make_case(*CASES[4], torch.float32)
    padded = torch.nn.functional.pad(gate_up, (0, 5), value=torch.nan)[:, :-5]
    expected, _ = lora_silu_and_mul(gate_up, h, tables, batch)
    assert not padded.is_contiguous() and torch.equal(lora_silu_and_mul(padded, h, tables, batch)[0], expected)
