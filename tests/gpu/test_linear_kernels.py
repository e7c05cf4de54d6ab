"""Projections on a GPU: against references, repeated, in graphs with early launches, with LoRA in the same launch."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.fp8_quantize import quantize_per_group, quantize_per_token, quantize_reference
from tensorrt_lora.kernels.fp8_weight import FP8_DTYPE, quantize_weight, quantize_weight_blocks
from tensorrt_lora.kernels.linear import linear, linear_reference
from tensorrt_lora.kernels.linear_weight import LinearWeight, tile_counters
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW, NUM_LORA_COUNTERS, LoraBatch, LoraTables
from tensorrt_lora.kernels.lora_expand import lora_expand
from tensorrt_lora.kernels.lora_linear import can_fuse, lora_linear
from tensorrt_lora.kernels.lora_shrink import lora_shrink, num_splits
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.streamed_linear import streamed_linear_triton
from tensorrt_lora.kernels.streamed_linear_config import StreamedLinearConfig, streamed_linear_config
from tests.support.graph_replay import replay_equals
from tests.support.lora_tables import make_lora_batch, make_lora_tables

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
STORED = ("none", "rows", "blocks")
# Relative over all values, beside a reference in float32 of the same values. Tensor cores sum float8 products to 14
# bits, the more coarsely the longer the sum is, and bfloat16 rounds the result by 1.1e-3 in the mean; rounding inputs
# and weights to float8 moves a product by 3.7e-2.
TOLERANCE = 6e-3
ROWS = [1, 2, 8, 16, 17, 33, 64, 65, 100, 257, 1000]
SHAPES = [(10240, 5120), (5120, 8192), (1024, 25600), (272, 72), (4096, 1536)]


def make_weight(shape: tuple[int, int], stored: str, *, bias: bool = False) -> LinearWeight:
    values = torch.randn(shape, device=DEVICE).bfloat16() * torch.logspace(-1, 1, shape[0], device=DEVICE)[:, None]
    weight = LinearWeight(values.bfloat16(), counters=tile_counters(shape[0], DEVICE))
    if bias:
        weight.bias = torch.randn(shape[0], device=DEVICE).bfloat16()
    if stored == "blocks":
        weight.values, weight.scale = quantize_weight_blocks(values)
    elif stored == "rows":
        parts = [quantize_weight(part) for part in values.chunk(3)]
        weight.values = torch.cat([part.view(torch.uint8) for part, _ in parts]).view(FP8_DTYPE)
        weight.scale = torch.cat([scale.expand(len(part)) for part, scale in parts])
    return weight


def as_read(x: Tensor, stored: str) -> Tensor | QuantizedActivation:
    if stored == "none":
        return x
    return quantize_per_group(x) if stored == "blocks" else quantize_per_token(x)


def make_input(rows: int, width: int) -> Tensor:
    return torch.randn((rows, width), device=DEVICE).bfloat16()


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def reference(x: Tensor | QuantizedActivation, weight: LinearWeight) -> Tensor:
    if isinstance(x, QuantizedActivation):
        return linear_reference(x, weight, torch.float32)
    bias = None if weight.bias is None else weight.bias.float()
    return torch.nn.functional.linear(x.float(), weight.values.float(), bias)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_equals_its_reference(shape: tuple[int, int], stored: str) -> None:
    for bias in (False, True):
        weight = make_weight(shape, stored, bias=bias)
        for rows in ROWS:
            x = as_read(make_input(rows, shape[1]), stored)
            actual = linear(x, weight, torch.bfloat16)
            assert actual.dtype is torch.bfloat16
            assert relative_error(actual, reference(x, weight)) < TOLERANCE, rows
            assert torch.equal(actual, linear(x, weight, torch.bfloat16)), rows
            assert weight.counters is not None and weight.counters.eq(0).all()


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize(("block_n", "num_warps"), [(16, 1), (32, 2), (64, 4), (128, 8)])
def test_every_tile_and_split(block_n: int, num_warps: int, splits: int, stored: str) -> None:
    shape = (1040, 4096)
    weight = make_weight(shape, stored)
    for rows in (1, 16, 50):
        config = StreamedLinearConfig(16 if rows <= 16 else 64, block_n, 128, splits, num_warps, num_stages=3)
        x = as_read(make_input(rows, shape[1]), stored)
        for programmatic in (False, True):
            actual = streamed_linear_triton(x, weight, torch.bfloat16, config, programmatic=programmatic)
            assert relative_error(actual, reference(x, weight)) < TOLERANCE, (rows, programmatic)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("rows", [1, 8, 48])
def test_early_launches_in_a_graph_change_nothing(rows: int, stored: str) -> None:
    """A chain of quantisations and projections, replayed with new inputs: a missed wait would read old values."""
    width, depth = 2048, 12
    weights = [make_weight((width, width), stored) for _ in range(depth)]
    x = torch.zeros((rows, width), device=DEVICE, dtype=torch.bfloat16)
    config = streamed_linear_config(
        rows, width, width, itemsize=weights[0].values.itemsize, block_scales=stored == "blocks"
    )

    def late_input(y: Tensor) -> Tensor | QuantizedActivation:
        if stored == "none":
            return y
        values = torch.empty(y.shape, dtype=FP8_DTYPE, device=DEVICE)
        scale = torch.empty((width // 128 if stored == "blocks" else 1, rows), device=DEVICE).t()
        quantize_reference(y, values, scale, None)
        return QuantizedActivation(values, scale)

    def chain(*, early: bool) -> Tensor:
        y = x
        for weight in weights:
            q = as_read(y, stored) if early else late_input(y)
            y = streamed_linear_triton(q, weight, torch.bfloat16, config, programmatic=None if early else False)
            y = (y / y.float().std()).bfloat16()  # ordinary kernels in between
        return y

    replay_equals(lambda: chain(early=True), lambda: chain(early=False), x)


# output sizes, ranks, extras, slot of each token
BOTH = BIAS_ROW | GAIN_ROW
LORA_CASES = [
    ((5120,), [[32]], None, [0]),
    ((2048, 512, 512), [[32, 8], [32, 0], [32, 17]], None, [1]),
    ((1024, 1024), [[3, 8, 1], [0, 1, 16]], None, [1, -1, 0, 1, -1, 2, 2, 0]),
    ((1024, 1024), [[3, 8, 1], [0, 1, 16]], None, [-1] * 8),
    ((2048, 256, 256), [[17, 64, 0], [64, 0, 3], [33, 1, 0]], None, [0, 2, 1, -1, 0, 0, 2] * 9),
    ((4096,), [[100, 256]], None, [0] * 19 + [-1, 1] * 20),
    ((5120,), [[32, 16, 8, 32, 4, 64, 32, 1]], None, list(range(8))),
    ((1024,), [[8]], None, [0] * 64),
    ((1024, 512), [[16, 15, 0], [0, 32, 1]], [[BOTH, BOTH, BIAS_ROW], [0, BOTH, GAIN_ROW]], [0, 2, 1, -1, 0, 2]),
]


def make_case(sizes, ranks, extras, token_slots, in_features) -> tuple[LoraTables, LoraBatch]:
    tables = make_lora_tables(
        in_features=in_features,
        output_sizes=sizes,
        ranks=ranks,
        extras=extras,
        dtype=torch.bfloat16,
        device=DEVICE,
    )
    tables.counters = torch.zeros(NUM_LORA_COUNTERS, dtype=torch.int32, device=DEVICE)
    return tables, make_lora_batch(token_slots, len(ranks[0]), device=DEVICE)


def three_ops(
    x: Tensor, base_x: Tensor | QuantizedActivation, weight: LinearWeight, tables: LoraTables, batch: LoraBatch
) -> Tensor:
    out = linear(base_x, weight, x.dtype)
    splits = num_splits(x.shape[0], x.shape[1], DEVICE)
    h = torch.full((splits, tables.num_modules, x.shape[0], tables.max_rank), torch.nan, device=DEVICE)
    lora_shrink(x, tables, batch, h)
    lora_expand(h, tables, batch, out, accumulate=True)
    return out


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("case", "in_features"), [
    *((case, 2048) for case in range(len(LORA_CASES))),
    *((case, width) for case in (1, 4) for width in (5120, 1032)),
])  # fmt: skip
def test_lora_in_the_same_launch_has_the_bits_of_three_ops(case: int, in_features: int, stored: str) -> None:
    sizes, ranks, extras, token_slots = LORA_CASES[case]
    tables, batch = make_case(sizes, ranks, extras, token_slots, in_features)
    weight = make_weight((sum(sizes), in_features), stored)
    x = make_input(len(token_slots), in_features)
    base_x = as_read(x, stored)
    assert can_fuse(x.shape[0], weight, tables)
    expected = three_ops(x, base_x, weight, tables, batch)
    for _ in range(20):
        assert torch.equal(lora_linear(x, base_x, weight, tables, batch), expected)
    assert tables.counters is not None and tables.counters.eq(0).all()


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("rows", [1, 8, 40])
def test_lora_chain_in_a_graph(rows: int, stored: str) -> None:
    """Fused launches one after the other, sharing their counters, replayed with new inputs."""
    width, depth = 2048, 12
    weights = [make_weight((width, width), stored) for _ in range(depth)]
    token_slots = [token % 4 - 1 for token in range(rows)] if rows > 1 else [2]
    tables, batch = make_case((width // 2, width // 2), [[32, 8, 17], [16, 0, 64]], None, token_slots, width)
    x = torch.zeros((rows, width), device=DEVICE, dtype=torch.bfloat16)

    def chain(*, fused: bool) -> Tensor:
        y = x
        for weight in weights:
            op = lora_linear if fused else three_ops
            y = op(y, as_read(y, stored), weight, tables, batch)
            y = (y / y.float().std()).bfloat16()
        return y

    replay_equals(lambda: chain(fused=True), lambda: chain(fused=False), x)
