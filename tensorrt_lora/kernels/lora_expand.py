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
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch


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
    """Launch shape of the kernel: tokens, columns and rank rows of a program's tiles, and its tiles side by side."""

    block_m: int
    block_n: int
    block_r: int
    num_warps: int
    blocks: int = 1


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
        ExpandConfig(block_m=64, block_n=128, block_r=16, num_warps=4, blocks=4),
        ExpandConfig(block_m=64, block_n=128, block_r=32, num_warps=4, blocks=4),
        ExpandConfig(block_m=64, block_n=128, block_r=64, num_warps=8, blocks=4),
        ExpandConfig(block_m=64, block_n=128, block_r=128, num_warps=8, blocks=2),
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
    column_groups = sum(triton.cdiv(size, config.block_n * config.blocks) for size in sizes)
    if batch.max_tiles == 0:
        return
    # Early only behind the base: beside it, a program that waits would hold the place of one that works.
    programmatic = accumulate and programmatic_launch(out)
    _lora_expand_kernel[column_groups, batch.max_tiles](
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
        BLOCKS=config.blocks,
        PROGRAMMATIC=programmatic,
        num_warps=config.num_warps,
        num_stages=1,
        **launch_options(programmatic),
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
    BLOCKS: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: the rows of one tile, in BLOCKS times BLOCK_N columns of one module."""
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
    # Groups of columns are counted module by module, so that none straddles two.
    WIDTH: tl.constexpr = BLOCK_N * BLOCKS
    group = tl.program_id(0)
    groups0 = tl.cdiv(size0, WIDTH)
    groups1 = tl.cdiv(size1, WIDTH)
    module = (group >= groups0).to(tl.int32) + (group >= groups0 + groups1).to(tl.int32)
    first_group = tl.where(module == 0, 0, tl.where(module == 1, groups0, groups0 + groups1))
    first_column = tl.where(module == 0, 0, tl.where(module == 1, size0, size0 + size1))
    end_column = tl.where(module == 0, size0, tl.where(module == 1, size0 + size1, size0 + size1 + size2))
    column = first_column + (group - first_group) * WIDTH + tl.arange(0, BLOCK_N)
    position = tl.arange(0, BLOCK_M)

    tile = tl.program_id(1)
    # Loads are issued before anything waits for one: at decode a program is little but dependent reads.
    slot = tl.load(tile_slot + tile)
    start = tl.load(tile_start + tile)
    length = tl.load(tile_len + tile)
    live_token = position < length
    is_used = slot >= 0
    slot_rank = tl.load(rank + module * num_slots + slot, mask=is_used, other=0)
    slot_scale = tl.load(scale + module * num_slots + slot, mask=is_used, other=0.0)
    flags = tl.load(extras + module * num_slots + slot, mask=is_used, other=0)
    token = tl.load(sorted_tokens + start + position, mask=live_token, other=0).to(tl.int64)
    pages = page_table + tl.maximum(slot, 0) * page_stride
    rank_row = tl.arange(0, BLOCK_R)
    b_tile = _load_b(b_pool, pages, rank_row, slot_rank, column, end_column, b_row_stride, MAX_RANK, PAGE)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
    if slot < 0:
        return

    touched = (slot_rank > 0) | (flags > 0)  # a mask rather than an exit, which would wait for the two
    live_row = live_token & touched
    out_rows = out + token * out_stride
    if ACCUMULATE:
        previous = _load_tile(out_rows, live_row, column, end_column)
    h_rows = h + (module.to(tl.int64) * num_tokens + token) * MAX_RANK
    split_stride = num_tokens.to(tl.int64) * MODULES * MAX_RANK
    h_tile = load_h(h_rows, rank_row, slot_rank, slot_scale, live_token, split_stride, PAGE, SPLITS).to(b_tile.dtype)
    for block in tl.static_range(BLOCKS):
        next_column = column + BLOCK_N
        if block + 1 < BLOCKS:  # under way before this block is stored
            next_b = _load_b(b_pool, pages, rank_row, slot_rank, next_column, end_column, b_row_stride, MAX_RANK, PAGE)
            if ACCUMULATE:
                next_previous = _load_tile(out_rows, live_row, next_column, end_column)
        acc = tl.dot(h_tile, b_tile, input_precision="ieee")
        if BLOCK_R < MAX_RANK:
            for first_rank in range(BLOCK_R, slot_rank, BLOCK_R):
                more = first_rank + rank_row
                more_b = _load_b(b_pool, pages, more, slot_rank, column, end_column, b_row_stride, MAX_RANK, PAGE)
                more_h = load_h(h_rows, more, slot_rank, slot_scale, live_token, split_stride, PAGE, SPLITS)
                acc = tl.dot(more_h.to(more_b.dtype), more_b, acc, input_precision="ieee")

        in_module = column < end_column
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
        tl.store(out_rows[:, None] + column[None, :], delta, mask=live_row[:, None] & in_module[None, :])
        if block + 1 < BLOCKS:
            column = next_column
            b_tile = next_b
            if ACCUMULATE:
                previous = next_previous


@triton.jit
def _load_tile(rows, live_row, column, end_column):
    """[BLOCK_M, BLOCK_N] of the base output, zeros where there is none."""
    return tl.load(rows[:, None] + column[None, :], mask=live_row[:, None] & (column < end_column)[None, :], other=0.0)


@triton.jit
def _load_b(
    b_pool,
    pages,
    rank_row,
    slot_rank,
    column,
    end_column,
    b_row_stride,
    MAX_RANK: tl.constexpr,
    PAGE: tl.constexpr,
):
    """[rank rows, BLOCK_N] of a slot's B, zeros beyond its rank."""
    page = tl.load(pages + rank_row // PAGE, mask=rank_row < MAX_RANK, other=0)
    b_rows = b_pool + (page * PAGE + rank_row % PAGE).to(tl.int64) * b_row_stride
    b_mask = (rank_row < slot_rank)[:, None] & (column < end_column)[None, :]
    return tl.load(b_rows[:, None] + column[None, :], mask=b_mask, other=0.0)


@triton.jit
def load_h(
    h_rows,
    rank_row,
    slot_rank,
    slot_scale,
    live_token,
    split_stride,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """[BLOCK_M, rank rows] float32 of a module's h: summed and scaled, zeros beyond the slot's rank."""
    # Whole pages are loaded, which keeps the loads wide; what no shrink has written is dropped after.
    h_tile = h_rows[:, None] + rank_row[None, :]
    h_mask = live_token[:, None] & (rank_row < tl.cdiv(slot_rank, PAGE) * PAGE)[None, :]
    h_sum = tl.load(h_tile, mask=h_mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        h_sum += tl.load(h_tile + split * split_stride, mask=h_mask, other=0.0)
    return tl.where((rank_row < slot_rank)[None, :], h_sum * slot_scale, 0.0)
