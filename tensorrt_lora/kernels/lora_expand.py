"""delta = (scale h) B for every row's own adapter, with its bias and DoRA gain: the second half of LoRA.

Called by `lora/lora_branch.py` with what a shrink left in `h`. Delta is rounded to the output's dtype before it is
added, so that adding it here and adding a stored one later (`lora_add`) give the same bits.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.lora_add import add_delta, load_row
from tensorrt_lora.kernels.lora_batch import (
    BIAS_ROW,
    DECODE_TILE_SIZE,
    GAIN_ROW,
    MAX_MODULES,
    PREFILL_TILE_SIZE,
    RANK_PAGE,
    LoraBatch,
    LoraTables,
)


def lora_expand(h: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor, accumulate: bool) -> None:
    """delta[t] = round(g * (round(scale * sum of h[:, m, t]) @ B[m, slot of t]) + bias) in the columns of module m.

    Slices are summed in order and scaled in float32, then rounded to `out`'s dtype; the product accumulates
    in float32, takes DoRA's g and the bias where the tables have them, and is rounded to `out`'s dtype too.

    Args:
        h: [splits, modules, T, max_rank] float32, contiguous; only what the shrink writes is read.
        out: [T, sum(output_sizes)], the tables' dtype, rows may be strided. With `accumulate` it holds the base
            output y and becomes y + (g - 1) y + delta; without, it becomes delta. Base rows and untouched modules
            are left as they are either way.
    """
    assert out.shape == (batch.token_slots.shape[0], tables.b_pool.shape[1]) and out.stride(-1) == 1
    assert h.is_contiguous() and h.shape[1:] == (tables.num_modules, out.shape[0], tables.max_rank)
    if use_triton(out):
        _lora_expand_triton(h, tables, batch, out, accumulate)
    else:
        lora_expand_reference(h, tables, batch, out, accumulate)


def lora_expand_reference(h: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor, accumulate: bool) -> None:
    """The same in torch."""
    compute_dtype = torch.promote_types(out.dtype, torch.float32)
    ranks, flags = tables.rank.T.tolist(), tables.extras.T.tolist()
    for slot, tokens in batch.segments():
        first_plane, *other_planes = h.index_select(2, tokens)
        h_sum = sum(other_planes, start=first_plane)
        h_scaled = (h_sum * tables.scale[:, slot, None, None]).to(out.dtype).to(compute_dtype)
        b = tables.b_pool.index_select(0, tables.pool_rows(slot, max(ranks[slot]))).to(compute_dtype)
        for module, (rank, columns) in enumerate(zip(ranks[slot], tables.column_slices, strict=True)):
            if rank == 0 and not flags[slot][module]:
                continue
            bias, gain = tables.extra_rows(slot, module)
            delta = h_scaled[module, :, :rank] @ b[:rank, columns]
            if gain is not None:
                delta = delta * (1 + gain.to(compute_dtype))
            if bias is not None:
                delta = delta + bias.to(compute_dtype)
            delta = delta.to(out.dtype)
            module_out = out[:, columns]
            module_out[tokens] = add_delta(module_out[tokens], delta, gain) if accumulate else delta


@dataclass(frozen=True, slots=True)
class ExpandConfig:
    """Launch shape of the kernel: tokens, columns and rank rows of a program's tiles."""

    block_m: int
    block_n: int
    block_r: int
    num_warps: int


# The rank is one tile, up to the last block_r of a row here. The loop over longer ones is not pipelined: on
# sm_90 Triton 3.6 can compute NaN when the first operand of a pipelined dot was converted.
EXPAND_CONFIGS: dict[tuple[int, bool], tuple[ExpandConfig, ...]] = {
    (DECODE_TILE_SIZE, True): (
        ExpandConfig(block_m=16, block_n=128, block_r=16, num_warps=4),
        ExpandConfig(block_m=16, block_n=128, block_r=32, num_warps=4),
        ExpandConfig(block_m=16, block_n=128, block_r=64, num_warps=4),
        ExpandConfig(block_m=16, block_n=128, block_r=128, num_warps=8),
    ),
    (PREFILL_TILE_SIZE, True): (
        ExpandConfig(block_m=64, block_n=128, block_r=16, num_warps=4),
        ExpandConfig(block_m=64, block_n=128, block_r=32, num_warps=4),
        ExpandConfig(block_m=64, block_n=128, block_r=64, num_warps=8),
        ExpandConfig(block_m=64, block_n=128, block_r=128, num_warps=8),
    ),
    (DECODE_TILE_SIZE, False): (
        ExpandConfig(block_m=16, block_n=64, block_r=16, num_warps=4),
        ExpandConfig(block_m=16, block_n=64, block_r=64, num_warps=8),
    ),
    (PREFILL_TILE_SIZE, False): (
        ExpandConfig(block_m=64, block_n=64, block_r=16, num_warps=8),
        ExpandConfig(block_m=64, block_n=32, block_r=64, num_warps=8),
    ),
}
"""By (tile size, 16-bit dtype), block_r rising: the first that covers max_rank is taken, else the last."""


def expand_config(tile_size: int, dtype: torch.dtype, max_rank: int) -> ExpandConfig:
    """The configuration for tables of this `max_rank`."""
    configs = EXPAND_CONFIGS[tile_size, dtype.itemsize == 2]
    return next((config for config in configs if config.block_r >= max_rank), configs[-1])


def _lora_expand_triton(h: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor, accumulate: bool) -> None:
    tokens = out.shape[0]
    config = expand_config(batch.tile_size, out.dtype, tables.max_rank)
    sizes = [*tables.output_sizes, 0, 0][:MAX_MODULES]
    assert sum(sizes) == out.shape[1]
    column_blocks = sum(triton.cdiv(size, config.block_n) for size in sizes)
    if batch.max_tiles == 0:
        return
    _lora_expand_kernel[column_blocks, batch.max_tiles](
        h,
        tables.b_pool,
        out,
        tables.page_table,
        tables.rank,
        tables.scale,
        tables.extras,
        batch.sorted_tokens,
        batch.tile_slot,
        batch.tile_start,
        batch.tile_len,
        tokens,
        tables.rank.shape[1],
        *sizes,
        tables.b_pool.stride(0),
        out.stride(0),
        tables.page_table.stride(0),
        MODULES=tables.num_modules,
        MAX_RANK=tables.max_rank,
        PAGE=RANK_PAGE,
        BIAS=BIAS_ROW,
        GAIN=GAIN_ROW,
        SPLITS=h.shape[0],
        ACCUMULATE=accumulate,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_R=config.block_r,
        num_warps=config.num_warps,
        num_stages=1,
    )


@triton.jit(
    do_not_specialize=["num_tokens", "num_slots", "page_stride"],
    do_not_specialize_on_alignment=[
        "page_table",
        "rank",
        "scale",
        "extras",
        "sorted_tokens",
        "tile_slot",
        "tile_start",
        "tile_len",
    ],
)
def _lora_expand_kernel(
    h,
    b_pool,
    out,
    page_table,
    rank,
    scale,
    extras,
    sorted_tokens,
    tile_slot,
    tile_start,
    tile_len,
    num_tokens,
    num_slots,
    size0,
    size1,
    size2,
    b_row_stride,
    out_stride,
    page_stride,
    MODULES: tl.constexpr,
    MAX_RANK: tl.constexpr,
    PAGE: tl.constexpr,
    BIAS: tl.constexpr,
    GAIN: tl.constexpr,
    SPLITS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """One program: the rows of one tile, in BLOCK_N columns of one module."""
    # Column blocks are counted module by module, so that none straddles two.
    block = tl.program_id(0)
    blocks0 = tl.cdiv(size0, BLOCK_N)
    blocks1 = tl.cdiv(size1, BLOCK_N)
    module = (block >= blocks0).to(tl.int32) + (block >= blocks0 + blocks1).to(tl.int32)
    first_block = tl.where(module == 0, 0, tl.where(module == 1, blocks0, blocks0 + blocks1))
    first_column = tl.where(module == 0, 0, tl.where(module == 1, size0, size0 + size1))
    end_column = tl.where(module == 0, size0, tl.where(module == 1, size0 + size1, size0 + size1 + size2))
    column = first_column + (block - first_block) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_module = column < end_column
    position = tl.arange(0, BLOCK_M)

    tile = tl.program_id(1)
    # Loads are issued before anything waits for one: at decode a program is little but dependent reads.
    slot = tl.load(tile_slot + tile)
    start = tl.load(tile_start + tile)
    length = tl.load(tile_len + tile)
    if slot < 0:
        return
    live_token = position < length
    slot_rank = tl.load(rank + module * num_slots + slot)
    slot_scale = tl.load(scale + module * num_slots + slot)
    flags = tl.load(extras + module * num_slots + slot)
    token = tl.load(sorted_tokens + start + position, mask=live_token, other=0).to(tl.int64)
    pages = page_table + slot * page_stride
    out_tile = out + token[:, None] * out_stride + column[None, :]
    touched = (slot_rank > 0) | (flags > 0)  # a mask rather than an exit, which would wait for the two
    out_mask = live_token[:, None] & in_module[None, :] & touched
    if ACCUMULATE:
        previous = tl.load(out_tile, mask=out_mask, other=0.0)
    h_rows = h + (module.to(tl.int64) * num_tokens + token) * MAX_RANK
    split_stride = num_tokens.to(tl.int64) * MODULES * MAX_RANK

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first_rank in range(0, MAX_RANK if BLOCK_R >= MAX_RANK else slot_rank, BLOCK_R):
        rank_row = first_rank + tl.arange(0, BLOCK_R)
        live_row = rank_row < slot_rank
        page = tl.load(pages + rank_row // PAGE, mask=rank_row < MAX_RANK, other=0)
        b_rows = b_pool + (page * PAGE + rank_row % PAGE).to(tl.int64) * b_row_stride
        b_mask = live_row[:, None] & in_module[None, :]
        b_tile = tl.load(b_rows[:, None] + column[None, :], mask=b_mask, other=0.0)
        # Whole pages are loaded, which keeps the loads wide; what no shrink has written is dropped after.
        h_tile = h_rows[:, None] + rank_row[None, :]
        h_mask = live_token[:, None] & (rank_row < tl.cdiv(slot_rank, PAGE) * PAGE)[None, :]
        h_sum = tl.load(h_tile, mask=h_mask, other=0.0)
        for split in tl.static_range(1, SPLITS):
            h_sum += tl.load(h_tile + split * split_stride, mask=h_mask, other=0.0)
        h_scaled = tl.where(live_row[None, :], h_sum * slot_scale, 0.0).to(b_tile.dtype)
        acc = tl.dot(h_scaled, b_tile, acc, input_precision="ieee")

    if flags > 0:
        bias_row = tl.zeros((BLOCK_N,), dtype=tl.int32) + slot_rank
        gain_row = bias_row + (flags & BIAS) // BIAS
        has_bias = in_module & ((flags & BIAS) != 0)
        has_gain = in_module & ((flags & GAIN) != 0)
        bias = load_row(b_pool + column, pages, bias_row, has_bias, b_row_stride, PAGE=PAGE)
        gain = load_row(b_pool + column, pages, gain_row, has_gain, b_row_stride, PAGE=PAGE)
        delta = tl.fma(acc, 1.0 + gain[None, :], bias[None, :]).to(out.dtype.element_ty)
        if ACCUMULATE:
            y = previous.to(tl.float32)
            delta = (tl.fma(y, gain[None, :], y) + delta.to(tl.float32)).to(delta.dtype)
    else:
        delta = acc.to(out.dtype.element_ty)
        if ACCUMULATE:
            delta = (previous.to(tl.float32) + delta.to(tl.float32)).to(delta.dtype)
    tl.store(out_tile, delta, mask=out_mask)
