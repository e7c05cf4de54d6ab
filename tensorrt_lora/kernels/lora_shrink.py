"""h = x A for every row's own adapter, in slices of K: the first half of the LoRA branch.

Called by `lora/layer.py`, which allocates `out` for as many slices as `num_splits` says; `lora_expand` sums
them. The rank rows of all modules are one axis, so a program covers several modules where ranks are small.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.lora_batch import (
    DECODE_TILE_SIZE,
    PREFILL_TILE_SIZE,
    RANK_PAGE,
    LoraBatch,
    LoraTables,
    choose_tile_size,
)
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch

_SPLIT_ALIGNMENT = 128  # K slices are whole K blocks of every decode configuration


def num_splits(tokens: int, in_features: int, device: torch.device) -> int:
    """Slices of K for `tokens` rows: a function of static facts only, so that a captured graph stays valid.

    A shrink has few output tiles and a long K. At decode up to 16 slices of at least 256 columns spread the
    reads of A over enough SMs: times the modules, 16 to 64 programs that keep all of an adapter in flight.
    More would cost the expand, whose every program reads all slices, what they save here. Long batches are bound
    by the reads of x: two programs for each SM of an H200 where K is long enough for it (8192 tokens of 25600 columns
    took 188 us with one slice, 109 us with two). Theirs is a power of two: steps without a graph may have any length,
    and each number of slices is a kernel to compile.
    """
    if device.type != "cuda":
        return 1
    tiles = triton.cdiv(max(tokens, 1), DECODE_TILE_SIZE)
    if choose_tile_size(tokens) == DECODE_TILE_SIZE:
        wanted = min(16 if tokens <= 32 else 8, 64 // tiles, in_features // 256)
    else:
        wanted = min(8, 256 * PREFILL_TILE_SIZE // tokens, in_features // 2048)
        wanted = 1 << max(wanted.bit_length() - 1, 0)
    wanted = max(1, wanted)
    width = triton.cdiv(triton.cdiv(in_features, wanted), _SPLIT_ALIGNMENT) * _SPLIT_ALIGNMENT
    return triton.cdiv(in_features, width)


def lora_shrink(x: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor) -> None:
    """out[s, m, t] = x[t, slice s of K] @ A[m, slot of t, slice s of K].T, unscaled, accumulated in float32.

    Args:
        x: [T, in], the tables' dtype, rows may be strided.
        out: [splits, modules, T, max_rank] float32, contiguous. Rows of base tokens and ranks beyond those of
            the token's adapter are left unwritten; every slice is written, an empty one with zeros.
    """
    assert x.shape[0] == batch.token_slots.shape[0] == out.shape[2] and x.stride(-1) == 1
    assert out.is_contiguous() and out.shape[1:] == (tables.num_modules, x.shape[0], tables.max_rank)
    if use_triton(x):
        _lora_shrink_triton(x, tables, batch, out)
    else:
        lora_shrink_reference(x, tables, batch, out)


def lora_shrink_reference(x: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor) -> None:
    """The same in torch. The kernel's slices are whole K blocks, these are even; their sums agree."""
    compute_dtype = torch.promote_types(x.dtype, torch.float32)
    width = triton.cdiv(x.shape[1], out.shape[0])
    ranks = tables.rank.T.tolist()
    for slot, tokens in batch.segments():
        pool_rows = tables.pool_rows(slot, max(ranks[slot]))
        a = tables.a_pool.index_select(1, pool_rows).to(compute_dtype)
        rows = x.index_select(0, tokens).to(compute_dtype)
        for split, plane in enumerate(out):
            columns = slice(split * width, (split + 1) * width)
            h = (rows[:, columns] @ a[:, :, columns].mT).to(out.dtype)
            for module, rank in enumerate(ranks[slot]):
                plane[module, tokens, :rank] = h[module, :, :rank]


@dataclass(frozen=True, slots=True)
class ShrinkConfig:
    """Launch shape of the kernel: tokens, rank rows (over all modules) and K columns of a program's tiles."""

    block_m: int
    block_r: int
    block_k: int
    num_warps: int
    num_stages: int


# Decode: A is read once, so its rows are spread over programs. Prefill: x is the large operand: one program
# takes all rank rows it can and reads x once. float32 has no tensor cores to feed, and half the room.
SHRINK_CONFIGS: dict[tuple[int, bool], tuple[ShrinkConfig, ...]] = {
    (DECODE_TILE_SIZE, True): (
        ShrinkConfig(block_m=16, block_r=16, block_k=128, num_warps=4, num_stages=4),
        ShrinkConfig(block_m=16, block_r=32, block_k=128, num_warps=4, num_stages=4),
        ShrinkConfig(block_m=16, block_r=64, block_k=128, num_warps=4, num_stages=4),
    ),
    (PREFILL_TILE_SIZE, True): (
        ShrinkConfig(block_m=64, block_r=16, block_k=64, num_warps=4, num_stages=4),
        ShrinkConfig(block_m=64, block_r=32, block_k=64, num_warps=4, num_stages=4),
        ShrinkConfig(block_m=64, block_r=64, block_k=64, num_warps=4, num_stages=4),
        ShrinkConfig(block_m=64, block_r=128, block_k=64, num_warps=4, num_stages=4),
        ShrinkConfig(block_m=64, block_r=256, block_k=64, num_warps=8, num_stages=4),
    ),
    (DECODE_TILE_SIZE, False): (
        ShrinkConfig(block_m=16, block_r=16, block_k=64, num_warps=4, num_stages=3),
        ShrinkConfig(block_m=16, block_r=64, block_k=64, num_warps=4, num_stages=3),
    ),
    (PREFILL_TILE_SIZE, False): (
        ShrinkConfig(block_m=64, block_r=16, block_k=32, num_warps=4, num_stages=3),
        ShrinkConfig(block_m=64, block_r=64, block_k=32, num_warps=4, num_stages=3),
    ),
}
"""By (tile size, 16-bit dtype), block_r rising: the first to cover all rank rows is taken, else the last."""


def shrink_config(tile_size: int, dtype: torch.dtype, rank_rows: int) -> ShrinkConfig:
    """The configuration for tables whose modules have `rank_rows` = modules * max_rank rows in all."""
    configs = SHRINK_CONFIGS[tile_size, dtype.itemsize == 2]
    return next((config for config in configs if config.block_r >= rank_rows), configs[-1])


def _lora_shrink_triton(x: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor) -> None:
    tokens, in_features = x.shape
    rank_rows = tables.num_modules * tables.max_rank
    config = shrink_config(batch.tile_size, x.dtype, rank_rows)
    splits = out.shape[0]
    grid = (triton.cdiv(rank_rows, config.block_r), splits, batch.max_tiles)
    if batch.max_tiles == 0:
        return
    programmatic = programmatic_launch(x)
    _lora_shrink_kernel[grid](
        x,
        tables.a_pool,
        out,
        tables.page_table,
        tables.rank,
        batch.sorted_tokens,
        batch.tile_slot,
        batch.tile_start,
        batch.tile_len,
        tokens,
        tables.rank.shape[1],
        in_features,
        x.stride(0),
        tables.a_pool.stride(0),
        tables.a_pool.stride(1),
        tables.page_table.stride(0),
        triton.cdiv(triton.cdiv(in_features, splits), config.block_k) * config.block_k,
        MODULES=tables.num_modules,
        MAX_RANK=tables.max_rank,
        PAGE=RANK_PAGE,
        BLOCK_M=config.block_m,
        BLOCK_R=config.block_r,
        BLOCK_K=config.block_k,
        EVEN_K=in_features % config.block_k == 0,
        PROGRAMMATIC=programmatic,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(programmatic),
    )


# The batch's fields and the tables' rows start wherever T and the layer put them: specialising on their
# alignment, or on a count of one, would compile the same kernel many times over.
@triton.jit(
    do_not_specialize=["num_tokens", "num_slots", "page_stride"],
    do_not_specialize_on_alignment=[
        "page_table",
        "rank",
        "sorted_tokens",
        "tile_slot",
        "tile_start",
        "tile_len",
    ],
)
def _lora_shrink_kernel(
    x,
    a_pool,
    out,
    page_table,
    rank,
    sorted_tokens,
    tile_slot,
    tile_start,
    tile_len,
    num_tokens,
    num_slots,
    in_features,
    x_stride,
    a_module_stride,
    a_row_stride,
    page_stride,
    split_width,
    MODULES: tl.constexpr,
    MAX_RANK: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: the rows of one tile times BLOCK_R rank rows, over one slice of K."""
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.program_id(2)
    # Loads are issued before anything waits for one: at decode a program is little but dependent reads.
    slot = tl.load(tile_slot + tile)
    start = tl.load(tile_start + tile)
    length = tl.load(tile_len + tile)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
    if slot < 0:
        return
    if not is_live_block(rank, slot, tl.program_id(0), num_slots, MAX_RANK, BLOCK_R):
        return
    shrink_block(
        x,
        a_pool,
        out,
        page_table,
        rank,
        sorted_tokens,
        slot,
        start,
        length,
        tl.program_id(0),
        tl.program_id(1),
        num_tokens,
        num_slots,
        in_features,
        x_stride,
        a_module_stride,
        a_row_stride,
        page_stride,
        split_width,
        MODULES,
        MAX_RANK,
        PAGE,
        BLOCK_M,
        BLOCK_R,
        BLOCK_K,
        EVEN_K,
    )


@triton.jit
def is_live_block(rank, slot, rank_block, num_slots, MAX_RANK: tl.constexpr, BLOCK_R: tl.constexpr):
    """Whether a block of rank rows has any of the slot's: not if it lies wholly beyond the rank of one module."""
    if MAX_RANK % BLOCK_R == 0:
        first_row = rank_block * BLOCK_R
        return first_row % MAX_RANK < tl.load(rank + first_row // MAX_RANK * num_slots + slot)
    else:
        return slot >= 0


@triton.jit
def shrink_block(
    x,
    a_pool,
    out,
    page_table,
    rank,
    sorted_tokens,
    slot,
    start,
    length,
    rank_block,
    split,
    num_tokens,
    num_slots,
    in_features,
    x_stride,
    a_module_stride,
    a_row_stride,
    page_stride,
    split_width,
    MODULES: tl.constexpr,
    MAX_RANK: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """The rows of one tile (of a slot, from `start` in the sorted tokens) times a block of rank rows, one slice of K.

    Rank rows of all modules are one axis: row i is row i % MAX_RANK of module i // MAX_RANK.
    """
    row = rank_block * BLOCK_R + tl.arange(0, BLOCK_R)
    module = row // MAX_RANK
    rank_row = row % MAX_RANK
    in_table = row < MODULES * MAX_RANK
    row_rank = tl.load(rank + module * num_slots + slot, mask=in_table, other=0)
    page = tl.load(page_table + slot * page_stride + rank_row // PAGE, mask=in_table, other=0)
    position = tl.arange(0, BLOCK_M)
    live_token = position < length
    token = tl.load(sorted_tokens + start + position, mask=live_token, other=0).to(tl.int64)
    live_row = rank_row < row_rank

    pool_row = (page * PAGE + rank_row % PAGE).to(tl.int64)
    x_rows = x + token * x_stride
    a_rows = a_pool + module.to(tl.int64) * a_module_stride + pool_row * a_row_stride

    acc = tl.zeros((BLOCK_M, BLOCK_R), dtype=tl.float32)
    first_k = split * split_width
    for k0 in range(first_k, tl.minimum(first_k + split_width, in_features), BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        if EVEN_K:
            x_tile = tl.load(x_rows[:, None] + k[None, :], mask=live_token[:, None], other=0.0)
            a_tile = tl.load(a_rows[:, None] + k[None, :], mask=live_row[:, None], other=0.0)
        else:
            in_k = k < in_features
            x_tile = tl.load(x_rows[:, None] + k[None, :], mask=live_token[:, None] & in_k[None, :], other=0.0)
            a_tile = tl.load(a_rows[:, None] + k[None, :], mask=live_row[:, None] & in_k[None, :], other=0.0)
        acc = tl.dot(x_tile, tl.trans(a_tile), acc, input_precision="ieee")

    out_columns = (split * MODULES + module).to(tl.int64) * num_tokens * MAX_RANK + rank_row
    out_tile = out + token[:, None] * MAX_RANK + out_columns[None, :]
    tl.store(out_tile, acc, mask=live_token[:, None] & live_row[None, :])
