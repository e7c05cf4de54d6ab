"""Base and LoRA in one launch against the three ops one after the other: the same bits."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_quantize import quantize_per_token
from tensorrt_lora.kernels.fp8_weight import quantize_weight
from tensorrt_lora.kernels.linear_weight import LinearWeight, tile_counters
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW, NUM_LORA_COUNTERS, LoraBatch, LoraTables
from tensorrt_lora.kernels.lora_expand import lora_expand
from tensorrt_lora.kernels.lora_linear import can_fuse, linear_and_shrink, lora_linear, lora_linear_triton
from tensorrt_lora.kernels.lora_shrink import lora_shrink
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.streamed_linear import streamed_linear_triton
from tensorrt_lora.kernels.streamed_linear_config import StreamedLinearConfig
from tests.support.lora_tables import make_lora_batch, make_lora_tables, shrink_by_token

INTERPRETED = use_triton(torch.zeros(1))
CPU = torch.device("cpu")
BOTH = BIAS_ROW | GAIN_ROW

# output sizes, ranks, extras, slot of each token
CASES = [
    ((32,), [[8]], None, [0]),
    ((32,), [[8]], None, [-1]),
    ((48, 16), [[3, 8], [0, 1]], None, [1, -1, 0, 1, -1]),
    ((96, 32), [[17, 64, 0], [64, 0, 3]], None, [0, 2, 1, -1, 0, 0, 2]),
    ((32, 16, 16), [[8, 0, 1], [0, 5, 1], [17, 2, 0]], None, [2, 2, -1, 1, 0, 1, 2, 0, 1, 1, 1]),
    ((32,), [[100, 9]], None, [0, 1, 1, 0]),
    ((32,), [[4, 150]], None, [0] * 19 + [-1, 1] * 6),
    ((48,), [[3, 8, 0, 2]], [[BIAS_ROW, GAIN_ROW, BOTH, 0]], [1, -1, 0, 2, 3, -1]),
    ((96, 32), [[16, 15, 0], [0, 32, 1]], [[BOTH, BOTH, BIAS_ROW], [0, BOTH, GAIN_ROW]], [0, 2, 1, -1, 0, 2]),
]


def make_weight(out_features: int, in_features: int, *, fp8: bool) -> LinearWeight:
    values = torch.randn(out_features, in_features)
    weight = LinearWeight(values, torch.randn(out_features), counters=tile_counters(out_features, CPU))
    if fp8:
        weight.values, scale = quantize_weight(values)
        weight.scale = scale.expand(out_features).contiguous()
    return weight


def in_three_steps(
    x: Tensor,
    base_x: Tensor | QuantizedActivation,
    weight: LinearWeight,
    tables: LoraTables,
    batch: LoraBatch,
    config: StreamedLinearConfig,
    splits: int,
) -> Tensor:
    out = streamed_linear_triton(base_x, weight, x.dtype, config)
    h = x.new_full((splits, tables.num_modules, x.shape[0], tables.max_rank), torch.nan, dtype=torch.float32)
    lora_shrink(x, tables, batch, h)
    lora_expand(h, tables, batch, out, accumulate=True)
    return out


@pytest.mark.skipif(not INTERPRETED, reason="the kernel, in Triton's interpreter")
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("sizes", "ranks", "extras", "token_slots"), CASES)
def test_kernel_equals_the_three_ops_bit_for_bit(
    sizes: tuple[int, ...],
    ranks: list[list[int]],
    extras: list[list[int]] | None,
    token_slots: list[int],
    splits: int,
    fp8: bool,
) -> None:
    tables = make_lora_tables(in_features=264, output_sizes=sizes, ranks=ranks, extras=extras)
    tables.counters = torch.zeros(NUM_LORA_COUNTERS, dtype=torch.int32)
    batch = make_lora_batch(token_slots, len(ranks[0]), tile_size=16)
    weight = make_weight(sum(sizes), 264, fp8=fp8)
    x = torch.randn(len(token_slots), 264)
    base_x = quantize_per_token(x) if fp8 else x
    config = StreamedLinearConfig(
        block_m=16 if len(token_slots) <= 16 else 32, block_n=16, block_k=128, splits=splits, num_warps=4, num_stages=1
    )
    expected = in_three_steps(x, base_x, weight, tables, batch, config, splits)
    for _ in range(2):  # the counters are as they were
        actual, _ = lora_linear_triton(x, base_x, weight, tables, batch, config, lora_splits=splits)
        assert torch.equal(actual, expected)
        assert tables.counters.eq(0).all() and weight.counters is not None and weight.counters.eq(0).all()


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("sizes", "ranks", "extras", "token_slots"), CASES)
def test_without_the_expand(
    sizes: tuple[int, ...],
    ranks: list[list[int]],
    extras: list[list[int]] | None,
    token_slots: list[int],
    splits: int,
) -> None:
    tables = make_lora_tables(in_features=264, output_sizes=sizes, ranks=ranks, extras=extras)
    tables.counters = torch.zeros(NUM_LORA_COUNTERS, dtype=torch.int32)
    batch = make_lora_batch(token_slots, len(ranks[0]), tile_size=16)
    weight, x = make_weight(sum(sizes), 264, fp8=False), torch.randn(len(token_slots), 264)
    if INTERPRETED:
        block_m = 16 if len(token_slots) <= 16 else 32
        config = StreamedLinearConfig(block_m, block_n=16, block_k=128, splits=splits, num_warps=4, num_stages=1)
        out, h = lora_linear_triton(x, x, weight, tables, batch, config, expand=False, lora_splits=splits)
        assert tables.counters.eq(0).all()
    else:
        out, h = linear_and_shrink(x, x, weight, tables, batch)
    torch.testing.assert_close(out, torch.nn.functional.linear(x, weight.values, weight.bias), rtol=1e-5, atol=1e-4)
    expected = shrink_by_token(x, tables, token_slots)
    for token, slot in enumerate(token_slots):
        for module in range(len(sizes) if slot >= 0 else 0):
            rank = ranks[module][slot]
            wanted = expected[module, token, :rank] * tables.scale[module, slot]
            torch.testing.assert_close(h[module, token, :rank].double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fp8", [False, True])
def test_reference_is_the_three_ops(fp8: bool) -> None:
    tables = make_lora_tables(in_features=40, output_sizes=(64, 64), ranks=[[4, 0], [2, 3]], dtype=torch.float64)
    tables.a_pool, tables.b_pool = tables.a_pool.float(), tables.b_pool.float()
    token_slots = [0, 1, -1, 0]
    batch = make_lora_batch(token_slots, 2)
    weight, x = make_weight(128, 40, fp8=fp8), torch.randn(4, 40)
    base_x = quantize_per_token(x) if fp8 else x
    if INTERPRETED:
        return
    out = lora_linear(x, base_x, weight, tables, batch)
    rows = base_x.dequantize() if isinstance(base_x, QuantizedActivation) else x
    values = weight.values.float() * (1 if weight.scale is None else weight.scale[:, None])
    expected = rows.double() @ values.double().T + (0 if weight.bias is None else weight.bias.double())
    for token, slot in enumerate(token_slots):
        for module, columns in enumerate(tables.column_slices if slot >= 0 else ()):
            pool_rows = tables.pool_rows(slot, int(tables.rank[module, slot]))
            h = tables.a_pool[module, pool_rows].double() @ x[token].double() * tables.scale[module, slot]
            expected[token, columns] += h @ tables.b_pool[pool_rows, columns].double()
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


def test_what_can_be_fused() -> None:
    weight = make_weight(128, 64, fp8=False)
    tables = make_lora_tables(in_features=64, output_sizes=(64, 64), ranks=[[4], [2]])
    assert not can_fuse(1, weight, tables)  # no counters
    tables.counters = torch.zeros(NUM_LORA_COUNTERS, dtype=torch.int32)
    assert can_fuse(1, weight, tables) and can_fuse(64, weight, tables)
    assert not can_fuse(0, weight, tables) and not can_fuse(65, weight, tables)
    wide = LinearWeight(torch.empty((51200, 5120), dtype=torch.float8_e4m3fn), counters=weight.counters)
    wide.scale = torch.empty(51200)
    halves = make_lora_tables(in_features=8, output_sizes=(25600, 25600), ranks=[[1], [1]])
    halves.counters = tables.counters
    assert can_fuse(16, wide, halves) and not can_fuse(64, wide, halves), "its tile and delta exceed the registers"
    assert can_fuse(64, wide, halves, expand=False)
    odd = make_lora_tables(in_features=64, output_sizes=(72, 56), ranks=[[4], [2]])
    odd.counters = tables.counters
    assert not can_fuse(1, weight, odd)
    many = make_lora_tables(in_features=64, output_sizes=(64, 64), ranks=[[1] * 64] * 2, max_rank=2048)
    many.counters = tables.counters
    assert can_fuse(16, weight, many) and not can_fuse(64, weight, many), "too many blocks of rank rows to be counted"
    weight.counters = None
    assert not can_fuse(1, weight, tables)
