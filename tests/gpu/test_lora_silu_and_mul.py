"""LoRA inside SiLU-and-mul on a GPU: the bits of the ops it stands for, alone, repeated, and in graphs."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.activation import silu_and_mul
from tensorrt_lora.kernels.fp8_quantize import quantize, quantize_per_token
from tensorrt_lora.kernels.fp8_weight import quantize_weight
from tensorrt_lora.kernels.linear_weight import LinearWeight, tile_counters
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW, NUM_LORA_COUNTERS, LoraBatch, LoraTables
from tensorrt_lora.kernels.lora_expand import lora_expand
from tensorrt_lora.kernels.lora_linear import can_fuse, linear_and_shrink, lora_linear
from tensorrt_lora.kernels.lora_shrink import lora_shrink, num_splits
from tensorrt_lora.kernels.lora_silu_and_mul import lora_silu_and_mul, lora_silu_and_mul_reference_into
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tests.support.graph_replay import replay_equals
from tests.support.lora_tables import make_lora_batch, make_lora_tables

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
BOTH = BIAS_ROW | GAIN_ROW
# To a reference that rounds at the same places: of bfloat16's roundings a few fall to the other side.
SAME_ROUNDING = {torch.bfloat16: 1e-3, torch.float32: 5e-6}

# width, ranks of gate and of up, extras, slot of each token
CASES = [
    (25600, [[32], [32]], None, [0]),
    (12288, [[64], [17]], None, [0, 0]),
    (1000, [[3], [1]], None, [-1]),
    (1536, [[17, 64, 0], [64, 0, 3]], None, [0, 2, 1, -1, 0, 0, 2]),
    (3072, [[100, 256], [256, 1]], None, [0] * 19 + [-1, 1] * 20),
    (25600, [[32, 16, 8, 32, 4, 64, 32, 1]] * 2, None, list(range(8))),
    (25600, [[32], [32]], None, [0] * 64),
    (130, [[3, 64, 17, 0], [1, 64, 0, 0]], None, [2, -1, 0, 3, 1] * 8),
    (1536, [[16, 15, 0], [0, 32, 1]], [[BOTH, BOTH, BIAS_ROW], [0, BOTH, GAIN_ROW]], [0, 2, 1, -1] * 5),
]


def quantizations() -> list[ActivationQuantization | None]:
    static = ActivationQuantization(static_scale=torch.tensor(0.02, device=DEVICE))
    return [None, ActivationQuantization(), ActivationQuantization(by_group=True), static]


def make_tables(
    width: int,
    ranks: list[list[int]],
    extras: list[list[int]] | None,
    dtype: torch.dtype = torch.bfloat16,
    in_features: int = 1,
) -> LoraTables:
    tables = make_lora_tables(
        in_features=in_features,
        output_sizes=(width, width),
        ranks=ranks,
        extras=extras,
        dtype=dtype,
        device=DEVICE,
    )
    tables.counters = torch.zeros(NUM_LORA_COUNTERS, dtype=torch.int32, device=DEVICE)
    return tables


def make_h(tables: LoraTables, batch: LoraBatch, dtype: torch.dtype) -> Tensor:
    """[2, T, max_rank], NaN where no shrink writes."""
    slots = batch.token_slots.long()
    rank = torch.where(slots >= 0, tables.rank[:, slots.clamp(min=0)], 0)
    h = torch.randn((2, len(slots), tables.max_rank), device=DEVICE)
    return h.masked_fill(torch.arange(tables.max_rank, device=DEVICE) >= rank[:, :, None], torch.nan).to(dtype)


def two_ops(
    gate_up: Tensor, h: Tensor, tables: LoraTables, batch: LoraBatch, how: ActivationQuantization | None
) -> tuple[Tensor, QuantizedActivation | None]:
    """`lora_expand`, which scales h by one here, and `silu_and_mul`."""
    with_lora, scale = gate_up.clone(), tables.scale.clone()
    tables.scale.fill_(1.0)
    lora_expand(h[None].float(), tables, batch, with_lora, accumulate=True)
    tables.scale.copy_(scale)
    return silu_and_mul(with_lora, how)


def assert_same(
    actual: tuple[Tensor, QuantizedActivation | None], expected: tuple[Tensor, QuantizedActivation | None]
) -> None:
    assert torch.equal(actual[0], expected[0])
    assert (actual[1] is None) is (expected[1] is None)
    if actual[1] is not None and expected[1] is not None:
        assert torch.equal(actual[1].values.view(torch.uint8), expected[1].values.view(torch.uint8))
        assert torch.equal(actual[1].scale, expected[1].scale)


@pytest.mark.parametrize(("width", "ranks", "extras", "token_slots"), CASES)
def test_has_the_bits_of_two_ops(
    width: int, ranks: list[list[int]], extras: list[list[int]] | None, token_slots: list[int]
) -> None:
    tables = make_tables(width, ranks, extras)
    batch = make_lora_batch(token_slots, len(ranks[0]), device=DEVICE)
    h = make_h(tables, batch, torch.bfloat16)
    gate_up = 2 * torch.randn((len(token_slots), 2 * width + 24), device=DEVICE).bfloat16()[:, : 2 * width]
    for how in quantizations():
        actual = lora_silu_and_mul(gate_up, h, tables, batch, how)
        assert actual[0].isfinite().all()
        assert_same(actual, two_ops(gate_up, h, tables, batch, how))
        assert_same(lora_silu_and_mul(gate_up, h, tables, batch, how), actual)
        if how is not None and actual[1] is not None:
            assert_same((actual[0], quantize(actual[0], how)), actual)


@pytest.mark.parametrize("dtype", SAME_ROUNDING)
@pytest.mark.parametrize(("width", "ranks", "extras", "token_slots"), CASES)
def test_is_near_the_reference(
    width: int,
    ranks: list[list[int]],
    extras: list[list[int]] | None,
    token_slots: list[int],
    dtype: torch.dtype,
) -> None:
    tables = make_tables(width, ranks, extras, dtype)
    batch = make_lora_batch(token_slots, len(ranks[0]), device=DEVICE)
    h = make_h(tables, batch, dtype)
    gate_up = torch.randn((len(token_slots), 2 * width), device=DEVICE).to(dtype)
    actual, _ = lora_silu_and_mul(gate_up, h, tables, batch)
    expected = torch.empty_like(actual)
    lora_silu_and_mul_reference_into(gate_up, h, tables, batch, expected, None, None)
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert error < SAME_ROUNDING[dtype]


# width, ranks of gate and of up, extras; of slices. The last slot of some has no adapter for one of the modules.
LONG_TABLES = [
    (25600, [[32], [32]], None),
    (12288, [[16, 3, 64], [17, 1, 0]], None),
    (1000, [[1, 17, 0], [3, 100, 5]], None),
    (1536, [[256, 100], [256, 3]], None),
    (130, [[3, 64], [1, 0]], None),
    (1536, [[16, 15, 0, 48], [0, 32, 1, 48]], [[BOTH, BOTH, BIAS_ROW, 0], [0, BOTH, GAIN_ROW, 0]]),
]


def make_slots(tokens: int, num_slots: int, base_rows: str) -> list[int]:
    """Adapters in turn, in stretches of some rows; base rows nowhere, among them, first, last or everywhere."""
    stretches = [row // 37 % num_slots for row in range(tokens)]
    if base_rows == "among":
        return [-1 if row % 5 == 0 else slot for row, slot in enumerate(stretches)]
    some = {"none": range(0), "first": range(70), "last": range(tokens - 40, tokens), "all": range(tokens)}[base_rows]
    return [-1 if row in some else slot for row, slot in enumerate(stretches)]


@pytest.mark.parametrize(
    ("tokens", "base_rows"),
    [(65, "none"), (65, "last"), (130, "among"), (130, "first"), (130, "all"), (512, "first"), (2049, "among")],
)
@pytest.mark.parametrize(("width", "ranks", "extras"), LONG_TABLES)
def test_slices_give_the_bits_of_two_ops(
    width: int, ranks: list[list[int]], extras: list[list[int]] | None, tokens: int, base_rows: str
) -> None:
    tables = make_tables(width, ranks, extras)
    batch = make_lora_batch(make_slots(tokens, len(ranks[0]), base_rows), len(ranks[0]), device=DEVICE)
    splits = num_splits(tokens, 4096, DEVICE)
    h = torch.stack([make_h(tables, batch, torch.float32) for _ in range(splits)]) * splits**-0.5
    gate_up = 2 * torch.randn((tokens, 2 * width + 24), device=DEVICE).bfloat16()[:, : 2 * width]
    before = gate_up.clone()
    with_lora = gate_up.clone()
    lora_expand(h, tables, batch, with_lora, accumulate=True)
    assert torch.equal(with_lora, before) is (base_rows == "all")
    for how in quantizations():
        actual = lora_silu_and_mul(gate_up, h, tables, batch, how)
        assert actual[0].isfinite().all() and torch.equal(gate_up, before)
        assert_same(actual, silu_and_mul(with_lora, how))
        assert_same(lora_silu_and_mul(gate_up, h, tables, batch, how), actual)


@pytest.mark.parametrize("dtype", SAME_ROUNDING)
@pytest.mark.parametrize(("width", "ranks", "extras"), LONG_TABLES[1:])
def test_slices_are_near_the_reference(
    width: int, ranks: list[list[int]], extras: list[list[int]] | None, dtype: torch.dtype
) -> None:
    tables = make_tables(width, ranks, extras, dtype)
    batch = make_lora_batch(make_slots(300, len(ranks[0]), "among"), len(ranks[0]), device=DEVICE)
    h = torch.stack([make_h(tables, batch, torch.float32) for _ in range(2)])
    gate_up = torch.randn((300, 2 * width), device=DEVICE).to(dtype)
    actual, _ = lora_silu_and_mul(gate_up, h, tables, batch)
    expected = torch.empty_like(actual)
    lora_silu_and_mul_reference_into(gate_up, h, tables, batch, expected, None, None)
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert error < SAME_ROUNDING[dtype]


@pytest.mark.parametrize("tokens", [65, 300])
def test_a_long_chain_in_a_graph(tokens: int) -> None:
    """As below, with base and shrink in launches of their own."""
    hidden, width, depth = 1024, 2048, 6
    ranks = [[32, 8, 17, 64], [32, 0, 64, 1]]
    tables = make_tables(width, ranks, None, in_features=hidden)
    batch = make_lora_batch(make_slots(tokens, 4, "among"), 4, device=DEVICE)
    how = ActivationQuantization()
    weights = [
        (
            torch.randn((2 * width, hidden), device=DEVICE).bfloat16() * hidden**-0.5,
            torch.randn((hidden, width), device=DEVICE).bfloat16() * width**-0.5,
        )
        for _ in range(depth)
    ]
    x = torch.zeros((tokens, hidden), device=DEVICE, dtype=torch.bfloat16)

    def chain(*, deferred: bool) -> Tensor:
        y = x
        for gate_up_weight, down_weight in weights:
            gate_up = torch.nn.functional.linear(y, gate_up_weight)
            h = gate_up.new_empty((num_splits(tokens, hidden, DEVICE), 2, tokens, tables.max_rank), dtype=torch.float32)
            lora_shrink(y, tables, batch, h)
            if deferred:
                product, quantized = lora_silu_and_mul(gate_up, h, tables, batch, how)
            else:
                lora_expand(h, tables, batch, gate_up, accumulate=True)
                product, quantized = silu_and_mul(gate_up, how)
            assert quantized is not None
            y = torch.nn.functional.linear(product + quantized.dequantize().bfloat16(), down_weight)
            y = (y / y.float().std()).bfloat16()
        return y

    replay_equals(lambda: chain(deferred=True), lambda: chain(deferred=False), x)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("token_slots", [[1], list(range(-1, 7)), [0] * 20 + [-1, 2] * 14])
def test_a_chain_in_a_graph(token_slots: list[int], fp8: bool) -> None:
    """Gate and up, their product, down, over and over, early launches and all: a missed wait would read old values."""
    hidden, width, depth = 2048, 4096, 8
    rows = len(token_slots)
    tables = make_tables(width, [[32, 8, 17, 64, 0, 3, 1], [32, 0, 64, 1, 5, 16, 2]], None, in_features=hidden)
    batch = make_lora_batch(token_slots, 7, device=DEVICE)
    how = ActivationQuantization() if fp8 else None

    def make_weight(out_features: int, in_features: int) -> LinearWeight:
        values = torch.randn((out_features, in_features), device=DEVICE).bfloat16() * in_features**-0.5
        weight = LinearWeight(values, counters=tile_counters(out_features, DEVICE))
        if fp8:
            weight.values, scale = quantize_weight(values)
            weight.scale = scale.expand(out_features).contiguous()
        return weight

    layers = [(make_weight(2 * width, hidden), make_weight(hidden, width)) for _ in range(depth)]
    down_tables = make_lora_tables(
        in_features=width, output_sizes=(hidden,), ranks=[[8] * 7], dtype=torch.bfloat16, device=DEVICE
    )
    down_tables.counters = tables.counters
    assert can_fuse(rows, layers[0][0], tables) and can_fuse(rows, layers[0][1], down_tables)
    x = torch.zeros((rows, hidden), device=DEVICE, dtype=torch.bfloat16)

    def chain(*, deferred: bool) -> Tensor:
        y = x
        for gate_up_weight, down_weight in layers:
            base_y = quantize_per_token(y) if fp8 else y
            if deferred:
                gate_up, h = linear_and_shrink(y, base_y, gate_up_weight, tables, batch)
                product, quantized = lora_silu_and_mul(gate_up, h, tables, batch, how)
            else:
                product, quantized = silu_and_mul(lora_linear(y, base_y, gate_up_weight, tables, batch), how)
            down_x = product if quantized is None else quantized
            y = lora_linear(product, down_x, down_weight, down_tables, batch)
            y = (y / y.float().std()).bfloat16()
        return y

    replay_equals(lambda: chain(deferred=True), lambda: chain(deferred=False), x)
    assert tables.counters is not None and tables.counters.eq(0).all()
