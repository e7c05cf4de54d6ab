"""LoRA inside SiLU-and-mul against float64, token by token, and its quantisation against that of its own output.

With both forms of h: scaled, in tiles for decoding, and in slices, in tiles of both sizes.
"""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels import lora_silu_and_mul_prefill
from tensorrt_lora.kernels.activation import silu_and_mul
from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_quantize import quantize_reference
from tensorrt_lora.kernels.lora_batch import (
    BIAS_ROW,
    DECODE_TILE_SIZE,
    GAIN_ROW,
    PREFILL_TILE_SIZE,
    LoraBatch,
    LoraTables,
)
from tensorrt_lora.kernels.lora_expand import lora_expand
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


# Of slices: with rows of many tiles, and base rows ahead of all others, behind them, or alone.
LONG_CASES = [
    *CASES,
    (130, [[3], [3]], None, [-1] * 130),
    (96, [[17, 0], [64, 0]], None, [-1] * 30 + [0] * 65 + [1] * 3),
    (128, [[100, 3], [1, 100]], None, [1] * 64 + [0] * 65 + [-1] * 64),
    (129, [[16], [16]], None, [0] * 128),
    (72, [[16, 15, 100], [0, 32, 1]], [[BOTH, BOTH, BIAS_ROW], [0, BOTH, GAIN_ROW]], [0, 2, 1, -1] * 35 + [1]),
]
# slices of h, tokens in a tile; None: h is scaled
FORMS = [None, (1, PREFILL_TILE_SIZE), (3, PREFILL_TILE_SIZE), (2, DECODE_TILE_SIZE)]

Arguments = tuple[Tensor, Tensor, LoraTables, LoraBatch]
Case = tuple[int, list[list[int]], list[list[int]] | None, list[int]]
FORMS_AND_CASES = [
    *((None, case) for case in CASES),
    *((FORMS[2], case) for case in LONG_CASES),
    *((form, case) for form in (FORMS[1], FORMS[3]) for case in (CASES[5], LONG_CASES[-1])),
]


def make_case(case: Case, dtype: torch.dtype, form: tuple[int, int] | None = None) -> Arguments:
    """The op's arguments; what h has beyond the ranks, and for base rows, is NaN."""
    width, ranks, extras, token_slots = case
    splits, tile_size = form or (1, DECODE_TILE_SIZE)
    tables = make_lora_tables(in_features=1, output_sizes=(width, width), ranks=ranks, extras=extras, dtype=dtype)
    h = torch.full((splits, 2, len(token_slots), tables.max_rank), torch.nan)
    for token, slot in enumerate(token_slots):
        for module in range(2 if slot >= 0 else 0):
            rank = ranks[module][slot]
            h[:, module, token, :rank] = torch.randn(splits, rank) * splits**-0.5
    if form is None:
        tables.scale.fill_(torch.nan)  # h is scaled
        h = h[0].to(dtype)
    batch = make_lora_batch(token_slots, len(ranks[0]), tile_size=tile_size)
    return torch.randn(len(token_slots), 2 * width).to(dtype), h, tables, batch


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("form", "case"), FORMS_AND_CASES)
def test_every_token_against_float64(form: tuple[int, int] | None, case: Case, dtype: torch.dtype) -> None:
    gate_up, h, tables, batch = make_case(case, dtype, form)
    before = gate_up.clone()
    actual, quantized = lora_silu_and_mul(gate_up, h, tables, batch)
    assert torch.equal(gate_up, before) and quantized is None and actual.dtype == dtype
    if form is None:
        tables.scale.fill_(1.0)
    h_sum = h if form is None else h.sum(0)
    gate, up = expand_by_token(h_sum, tables, case[-1], gate_up).chunk(2, dim=-1)
    expected = gate / (1 + torch.exp(-gate)) * up
    torch.testing.assert_close(actual.double(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize(("form", "case"), FORMS_AND_CASES)
def test_what_is_quantised_is_the_output(
    form: tuple[int, int] | None, case: Case, quantization: ActivationQuantization
) -> None:
    compute = lora_silu_and_mul_triton if INTERPRETED else lora_silu_and_mul_reference_into
    arguments = make_case(case, torch.float32, form)
    expected, _ = lora_silu_and_mul(*arguments)
    out = torch.empty_like(expected)
    actual, wanted = empty_uncast(out, quantization), empty_uncast(out, quantization)
    compute(*arguments, out, quantization, actual)
    assert torch.equal(out, expected)
    quantize_reference(out, wanted.values, wanted.scale, quantization.static_scale)
    assert torch.equal(actual.values, wanted.values) and torch.equal(actual.scale, wanted.scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", LONG_CASES[-5:])
def test_slices_give_the_bits_of_two_ops(case: Case, dtype: torch.dtype) -> None:
    gate_up, h, tables, batch = make_case(case, dtype, (3, PREFILL_TILE_SIZE))
    actual, _ = lora_silu_and_mul(gate_up, h, tables, batch)
    lora_expand(h, tables, batch, gate_up, accumulate=True)
    expected, _ = silu_and_mul(gate_up)
    if INTERPRETED:  # numpy sums a product in an order that depends on its shape
        torch.testing.assert_close(actual, expected, rtol=TOLERANCES[dtype] / 4, atol=TOLERANCES[dtype] / 4)
    else:
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("max_rank", [16, 64, 112])
def test_a_program_may_have_several_blocks_of_columns(max_rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    width, token_slots = 330, [0] * 70 + [-1] * 3
    case = (width, [[max_rank], [max_rank - 1]], None, token_slots)
    for quantization in [None, *QUANTIZATIONS]:
        arguments = make_case(case, torch.float32, (1, PREFILL_TILE_SIZE))
        results = []
        for wanted in (1 << 20, 1):
            monkeypatch.setattr(lora_silu_and_mul_prefill, "_WANTED_PROGRAMS", wanted)
            results.append(lora_silu_and_mul(*arguments, quantization))
        (one, one_quantized), (several, several_quantized) = results
        assert torch.equal(one, several)
        if one_quantized is not None and several_quantized is not None:
            assert torch.equal(one_quantized.scale, several_quantized.scale)
            assert torch.equal(one_quantized.values.view(torch.uint8), several_quantized.values.view(torch.uint8))


@pytest.mark.parametrize("form", FORMS)
def test_strided_rows(form: tuple[int, int] | None) -> None:
    gate_up, h, tables, batch = make_case(CASES[4], torch.float32, form)
    padded = torch.nn.functional.pad(gate_up, (0, 5), value=torch.nan)[:, :-5]
    expected, _ = lora_silu_and_mul(gate_up, h, tables, batch)
    assert not padded.is_contiguous() and torch.equal(lora_silu_and_mul(padded, h, tables, batch)[0], expected)
