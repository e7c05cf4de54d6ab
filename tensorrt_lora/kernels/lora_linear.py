"""y = x W^T with every row's own LoRA, in one launch: the base projection and its LoRA branch for few tokens.

Called by `lora/layer.py` where the plan says so. The first programs are those of `lora_shrink`; the last of them to
finish a block of rank rows adds its slices up, scales and rounds them. The others are those of `streamed_linear`: each
streams its rows of W, and adds B h, ready by then, to its finished tile. Programs wait only for programs with lower
numbers, which start first, so none waits for one that cannot run. The result has the bits of `lora_shrink`, `linear`
and `lora_expand` one after the other: the same blocks, sums in the same order, rounded at the same places.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.linear import linear
from tensorrt_lora.kernels.linear_weight import LinearWeight
from tensorrt_lora.kernels.lora_add import load_row
from tensorrt_lora.kernels.lora_batch import (
    BIAS_ROW,
    DECODE_TILE_SIZE,
    GAIN_ROW,
    MAX_MODULES,
    RANK_PAGE,
    LoraBatch,
    LoraTables,
)
from tensorrt_lora.kernels.lora_expand import lora_expand
from tensorrt_lora.kernels.lora_shrink import is_live_block, lora_shrink, num_splits, shrink_block, shrink_config
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.streamed_linear import (
    NOT_SPECIALIZED,
    check_config,
    is_last_split,
    load_scales,
    scales_of,
    stream_sum,
    sum_of_splits,
)
from tensorrt_lora.kernels.streamed_linear_config import (
    MAX_STREAMED_TOKENS,
    StreamedLinearConfig,
    streamed_linear_config,
)

_EXPAND_RANK = 64  # rank rows of B in registers at once
_SHRINK_WARPS = 4
_MOST_EXPANDED_VALUES = 64 * 64  # of a tile: with more, its sums and its delta do not fit into registers


def can_fuse(tokens: int, weight: LinearWeight, tables: LoraTables, *, expand: bool = True) -> bool:
    """Whether one launch serves such a product: few tokens, and no tile of outputs in two modules.

    Args:
        expand: whether it has the expand in it, as in `lora_linear`; not so in `linear_and_shrink`.
    """
    if weight.counters is None or tables.counters is None or not 0 < tokens <= MAX_STREAMED_TOKENS:
        return False
    config = _base_config(tokens, weight)
    if expand and config.block_m * config.block_n > _MOST_EXPANDED_VALUES:
        return False
    return config.num_warps == _SHRINK_WARPS and all(size % config.block_n == 0 for size in tables.output_sizes)


def lora_linear(
    x: Tensor, base_x: Tensor | QuantizedActivation, weight: LinearWeight, tables: LoraTables, batch: LoraBatch
) -> Tensor:
    """x W^T + bias as a new tensor [T, N] of x's dtype, and LoRA on top in the rows of adapters.

    Args:
        x: [T, K], the unquantised input, contiguous.
        base_x: what the weight multiplies: x, or x quantised.
        weight: as `can_fuse` wants it.
    """
    if use_triton(x):
        out, _ = lora_linear_triton(x, base_x, weight, tables, batch, _base_config(x.shape[0], weight))
        return out
    return lora_linear_reference(x, base_x, weight, tables, batch)


def linear_and_shrink(
    x: Tensor, base_x: Tensor | QuantizedActivation, weight: LinearWeight, tables: LoraTables, batch: LoraBatch
) -> tuple[Tensor, Tensor]:
    """x W^T + bias without LoRA, and h = scale * x A for the consumer of the first to expand; arguments as above.

    h is [modules, T, max_rank] in x's dtype. Rows of base tokens, and ranks beyond those of a token's adapter, are left
    unwritten.
    """
    if use_triton(x):
        config = _base_config(x.shape[0], weight)
        return lora_linear_triton(x, base_x, weight, tables, batch, config, expand=False)
    return linear_and_shrink_reference(x, base_x, weight, tables, batch)


def linear_and_shrink_reference(
    x: Tensor, base_x: Tensor | QuantizedActivation, weight: LinearWeight, tables: LoraTables, batch: LoraBatch
) -> tuple[Tensor, Tensor]:
    """The same as two ops."""
    slices = x.new_empty(
        (num_splits(x.shape[0], x.shape[1], x.device), tables.num_modules, x.shape[0], tables.max_rank)
    )
    slices = slices.to(torch.promote_types(x.dtype, torch.float32))
    lora_shrink(x, tables, batch, slices)
    h_sum = sum(slices[1:], start=slices[0])
    token_scale = tables.scale[:, batch.token_slots.clamp(min=0).long(), None]
    return linear(base_x, weight, x.dtype), (h_sum * token_scale).to(x.dtype)


def lora_linear_reference(
    x: Tensor, base_x: Tensor | QuantizedActivation, weight: LinearWeight, tables: LoraTables, batch: LoraBatch
) -> Tensor:
    """The same as three ops."""
    out = linear(base_x, weight, x.dtype)
    splits = num_splits(x.shape[0], x.shape[1], x.device)
    h = x.new_empty((splits, tables.num_modules, x.shape[0], tables.max_rank), dtype=torch.float32)
    lora_shrink(x, tables, batch, h)
    lora_expand(h, tables, batch, out, accumulate=True)
    return out


def _base_config(tokens: int, weight: LinearWeight) -> StreamedLinearConfig:
    block_scales = weight.scale is not None and weight.scale.dim() == 2
    itemsize = weight.values.itemsize
    return streamed_linear_config(tokens, *weight.values.shape, itemsize=itemsize, block_scales=block_scales)


def lora_linear_triton(
    x: Tensor,
    base_x: Tensor | QuantizedActivation,
    weight: LinearWeight,
    tables: LoraTables,
    batch: LoraBatch,
    config: StreamedLinearConfig,
    *,
    expand: bool = True,
    lora_splits: int | None = None,
    programmatic: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Both ops as a Triton kernel: (output, h).

    Args:
        expand: whether the output has LoRA in it.
        lora_splits: slices of K of the shrink; None for those of `num_splits`.
        programmatic: replaces what `programmatic_launch` says.
    """
    tokens, in_features = x.shape
    out_features = weight.values.shape[0]
    values, x_scale = (base_x.values, base_x.scale) if isinstance(base_x, QuantizedActivation) else (base_x, None)
    assert x.is_contiguous() and values.is_contiguous() and weight.counters is not None and tables.counters is not None
    assert batch.tile_size == DECODE_TILE_SIZE and tokens <= config.block_m
    assert all(size % config.block_n == 0 for size in tables.output_sizes)
    if programmatic is None:
        programmatic = programmatic_launch(x)

    rank_rows = tables.num_modules * tables.max_rank
    shrink = shrink_config(batch.tile_size, x.dtype, rank_rows)
    rank_blocks = triton.cdiv(rank_rows, shrink.block_r)
    lora_splits = lora_splits or num_splits(tokens, in_features, x.device)
    splits = check_config(config, tokens, weight)
    n_tiles = triton.cdiv(out_features, config.block_n)
    shrink_programs = rank_blocks * lora_splits * batch.max_tiles
    assert batch.max_tiles * rank_blocks < tables.counters.numel() < 1 << 15 and n_tiles * splits < 1 << 15

    out = x.new_empty((tokens, out_features))
    partials = x.new_empty((splits, tokens, out_features), dtype=torch.float32) if splits > 1 else out
    h_slices = x.new_empty((lora_splits, tables.num_modules, tokens, tables.max_rank), dtype=torch.float32)
    h = x.new_empty((tables.num_modules, tokens, tables.max_rank))
    sizes = [*tables.output_sizes, 0, 0][:MAX_MODULES]
    _lora_linear_kernel[(shrink_programs + n_tiles * splits,)](
        x,
        values,
        values if x_scale is None else x_scale,
        weight.values,
        values if weight.scale is None else weight.scale,
        out if weight.bias is None else weight.bias,
        out,
        partials,
        weight.counters,
        tables.a_pool,
        tables.b_pool,
        h_slices,
        h,
        tables.counters,
        tables.page_table,
        tables.rank,
        tables.scale,
        tables.extras,
        batch.token_slots,
        batch.sorted_tokens,
        batch.tile_slot,
        batch.tile_start,
        batch.tile_len,
        tokens,
        out_features,
        in_features,
        0 if x_scale is None else x_scale.stride(0),
        0 if x_scale is None else x_scale.stride(1),
        config.split_width(in_features),
        batch.max_tiles,
        tables.rank.shape[1],
        tables.a_pool.stride(0),
        tables.a_pool.stride(1),
        tables.b_pool.stride(0),
        tables.page_table.stride(0),
        triton.cdiv(triton.cdiv(in_features, lora_splits), shrink.block_k) * shrink.block_k,
        sizes[0],
        sizes[0] + sizes[1],
        SCALES=scales_of(weight),
        HAS_BIAS=weight.bias is not None,
        SPLITS=splits,
        EVEN_K=in_features % config.block_k == 0,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        PROGRAMMATIC=programmatic,
        MODULES=tables.num_modules,
        MAX_RANK=tables.max_rank,
        PAGE=RANK_PAGE,
        BIAS=BIAS_ROW,
        GAIN=GAIN_ROW,
        LORA_SPLITS=lora_splits,
        RANK_BLOCKS=rank_blocks,
        LORA_EVEN_K=in_features % shrink.block_k == 0,
        SHRINK_M=shrink.block_m,
        SHRINK_R=shrink.block_r,
        SHRINK_K=shrink.block_k,
        EXPAND=expand,
        EXPAND_R=min(triton.next_power_of_2(tables.max_rank), _EXPAND_RANK),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(programmatic),
    )
    return out, h


@triton.jit(
    do_not_specialize=[*NOT_SPECIALIZED, "max_tiles", "num_slots", "page_stride"],
    do_not_specialize_on_alignment=[
        "x_scale",
        "bias",
        "page_table",
        "rank",
        "lora_scale",
        "extras",
        "token_slots",
        "sorted_tokens",
        "tile_slot",
        "tile_start",
        "tile_len",
    ],
)
def _lora_linear_kernel(
    x,
    base_x,
    x_scale,
    weight,
    weight_scale,
    bias,
    out,
    partials,
    counters,
    a_pool,
    b_pool,
    h_slices,
    h,
    lora_counters,
    page_table,
    rank,
    lora_scale,
    extras,
    token_slots,
    sorted_tokens,
    tile_slot,
    tile_start,
    tile_len,
    num_tokens,
    out_features,
    in_features,
    x_scale_token_stride,
    x_scale_group_stride,
    split_width,
    max_tiles,
    num_slots,
    a_module_stride,
    a_row_stride,
    b_row_stride,
    page_stride,
    lora_split_width,
    end0,
    end1,
    SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
    MODULES: tl.constexpr,
    MAX_RANK: tl.constexpr,
    PAGE: tl.constexpr,
    BIAS: tl.constexpr,
    GAIN: tl.constexpr,
    LORA_SPLITS: tl.constexpr,
    RANK_BLOCKS: tl.constexpr,
    LORA_EVEN_K: tl.constexpr,
    SHRINK_M: tl.constexpr,
    SHRINK_R: tl.constexpr,
    SHRINK_K: tl.constexpr,
    EXPAND: tl.constexpr,
    EXPAND_R: tl.constexpr,
):
    """One program: a block of the shrink, of which there are max_tiles * LORA_SPLITS * RANK_BLOCKS, or a base tile."""
    shrink_programs = max_tiles * LORA_SPLITS * RANK_BLOCKS
    program = tl.program_id(0)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
    if program < shrink_programs:
        if PROGRAMMATIC:
            tl.extra.cuda.gdc_wait()
        rank_block = program % RANK_BLOCKS
        lora_split = program // RANK_BLOCKS % LORA_SPLITS
        tile = program // (RANK_BLOCKS * LORA_SPLITS)
        shrink_slot = tl.load(tile_slot + tile)
        start = tl.load(tile_start + tile)
        length = tl.load(tile_len + tile)
        live_block = shrink_slot >= 0
        if live_block:
            live_block = is_live_block(rank, shrink_slot, rank_block, num_slots, MAX_RANK, SHRINK_R)
        if live_block:
            shrink_block(
                x,
                a_pool,
                h_slices,
                page_table,
                rank,
                sorted_tokens,
                shrink_slot,
                start,
                length,
                rank_block,
                lora_split,
                num_tokens,
                num_slots,
                in_features,
                in_features,
                a_module_stride,
                a_row_stride,
                page_stride,
                lora_split_width,
                MODULES,
                MAX_RANK,
                PAGE,
                SHRINK_M,
                SHRINK_R,
                SHRINK_K,
                LORA_EVEN_K,
            )
        tl.debug_barrier()  # all of the program's sums are written before it counts itself
        block_counter = lora_counters + 1 + tile * RANK_BLOCKS + rank_block
        if tl.atomic_add(block_counter, 1, sem="acq_rel") == LORA_SPLITS - 1:
            tl.store(block_counter, 0)
            if live_block:
                _finish_block(
                    h_slices,
                    h,
                    rank,
                    lora_scale,
                    sorted_tokens,
                    shrink_slot,
                    start,
                    length,
                    rank_block,
                    num_tokens,
                    num_slots,
                    MODULES,
                    MAX_RANK,
                    PAGE,
                    LORA_SPLITS,
                    SHRINK_M,
                    SHRINK_R,
                )
            tl.debug_barrier()
            if EXPAND:
                tl.atomic_add(lora_counters, 1, sem="acq_rel")
        return

    base_program = program - shrink_programs
    n_tiles = tl.cdiv(out_features, BLOCK_N)
    n_tile = base_program % n_tiles
    split = base_program // n_tiles
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    first_k = split * split_width
    last_k = tl.minimum(first_k + split_width, in_features)
    module = (n_tile * BLOCK_N >= end0).to(tl.int32) + (n_tile * BLOCK_N >= end1).to(tl.int32)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
    # All that the end of the stream needs, but for h, is loaded ahead of it: one after the other, these loads took as
    # long as a twentieth of the stream.
    row_scale, token_scale = load_scales(
        x_scale, weight_scale, n, m, num_tokens, out_features, x_scale_token_stride, SCALES, BLOCK_M, BLOCK_N
    )
    if EXPAND:
        token_slot = tl.load(token_slots + m, mask=m < num_tokens, other=-1)
        slot = tl.load(tile_slot)
        pages = page_table + tl.maximum(slot, 0) * page_stride
        slot_rank = tl.load(rank + module * num_slots + slot, mask=slot >= 0, other=0)
        flags = tl.load(extras + module * num_slots + slot, mask=slot >= 0, other=0)
        b_tile = _load_b(b_pool, pages, tl.arange(0, EXPAND_R), slot_rank, n, b_row_stride, PAGE)
    acc = stream_sum(
        base_x,
        x_scale,
        weight,
        weight_scale,
        n,
        m,
        n_tile,
        first_k,
        last_k,
        num_tokens,
        out_features,
        in_features,
        x_scale_token_stride,
        x_scale_group_stride,
        SCALES,
        EVEN_K,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )
    if EXPAND:
        _wait_for_shrink(lora_counters, max_tiles * RANK_BLOCKS, n_tiles * SPLITS)
    if SPLITS > 1:
        if not is_last_split(acc, partials, counters, n, m, n_tile, split, num_tokens, out_features, SPLITS):
            return
        acc = sum_of_splits(partials, n, m, num_tokens, out_features, SPLITS, BLOCK_M, BLOCK_N)
    y = acc * row_scale[:, None] * token_scale[None, :]
    if HAS_BIAS:
        y += tl.load(bias + n, mask=n < out_features, other=0.0).to(tl.float32)[:, None]

    if EXPAND:
        # Slot by slot: a token is in one of them, the others add zeros.
        h_rows = h + (module.to(tl.int64) * num_tokens + m) * MAX_RANK
        delta = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        gains = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        tile = 0
        while slot >= 0:
            in_slot = token_slot == slot
            for first_rank in range(0, MAX_RANK if EXPAND_R >= MAX_RANK else slot_rank, EXPAND_R):
                rank_row = first_rank + tl.arange(0, EXPAND_R)
                if first_rank > 0:
                    b_tile = _load_b(b_pool, pages, rank_row, slot_rank, n, b_row_stride, PAGE)
                h_mask = in_slot[:, None] & (rank_row < slot_rank)[None, :]
                h_tile = tl.load(h_rows[:, None] + rank_row[None, :], mask=h_mask, other=0.0, cache_modifier=".cg")
                delta = tl.dot(h_tile, b_tile, delta, input_precision="ieee")
            if flags > 0:
                delta, gains = _apply_extras(
                    delta, gains, in_slot, b_pool, pages, slot_rank, flags, n, b_row_stride, PAGE, BIAS, GAIN, BLOCK_N
                )
            # Tiles of one slot are neighbours.
            previous = slot
            while slot == previous:
                tile += 1
                slot = tl.load(tile_slot + tile, mask=tile < max_tiles, other=-1)
            if slot >= 0:
                pages = page_table + slot * page_stride
                slot_rank = tl.load(rank + module * num_slots + slot)
                flags = tl.load(extras + module * num_slots + slot)
                b_tile = _load_b(b_pool, pages, tl.arange(0, EXPAND_R), slot_rank, n, b_row_stride, PAGE)
        # As the base and the expand round, each by itself.
        wide = y.to(out.dtype.element_ty).to(tl.float32)
        rounded = tl.trans(delta).to(out.dtype.element_ty).to(tl.float32)
        y = tl.fma(wide, tl.trans(gains), wide) + rounded
    live = (n < out_features)[:, None] & (m < num_tokens)[None, :]
    tl.store(out + m.to(tl.int64)[None, :] * out_features + n[:, None], y.to(out.dtype.element_ty), mask=live)


@triton.jit
def _wait_for_shrink(counter, shrink_blocks, base_programs):
    """Wait until `shrink_blocks` are counted in the low half of `counter`, and leave it at zero for the next call.

    The high half counts the base's programs that came by. The last of them resets the counter when it has seen all
    blocks; one that still waits takes the empty high half for a sign that they are there.
    """
    came = tl.atomic_add(counter, 1 << 16, sem="acq_rel")
    seen = came + (1 << 16)
    while (seen >= 1 << 16) & ((seen & 0xFFFF) < shrink_blocks):
        seen = tl.atomic_add(counter, 0, sem="acquire")
    if (came >> 16) == base_programs - 1:
        tl.atomic_xchg(counter, 0, sem="acq_rel")


@triton.jit
def _load_b(b_pool, pages, rank_row, slot_rank, n, b_row_stride, PAGE: tl.constexpr):
    """[rank rows, BLOCK_N]: rows of a slot's B at the columns `n`, zeros beyond its rank."""
    live_row = rank_row < slot_rank
    page = tl.load(pages + rank_row // PAGE, mask=live_row, other=0)
    b_rows = b_pool + (page * PAGE + rank_row % PAGE).to(tl.int64) * b_row_stride
    return tl.load(b_rows[:, None] + n[None, :], mask=live_row[:, None], other=0.0)


@triton.jit
def _apply_extras(
    delta,
    gains,
    in_slot,
    b_pool,
    pages,
    slot_rank,
    flags,
    n,
    b_row_stride,
    PAGE: tl.constexpr,
    BIAS: tl.constexpr,
    GAIN: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """`delta` with the bias and DoRA's g in the rows of a slot, and `gains` with its g - 1."""
    bias_row = tl.zeros((BLOCK_N,), dtype=tl.int32) + slot_rank
    gain_row = bias_row + (flags & BIAS) // BIAS
    every = n >= 0
    bias = load_row(b_pool + n, pages, bias_row, every & ((flags & BIAS) != 0), b_row_stride, PAGE=PAGE)
    gain = load_row(b_pool + n, pages, gain_row, every & ((flags & GAIN) != 0), b_row_stride, PAGE=PAGE)
    with_extras = tl.fma(delta, 1.0 + gain[None, :], bias[None, :])
    delta = tl.where(in_slot[:, None], with_extras, delta)
    gains = tl.where(in_slot[:, None], gain[None, :], gains)
    return delta, gains


@triton.jit
def _finish_block(
    h_slices,
    h,
    rank,
    lora_scale,
    sorted_tokens,
    slot,
    start,
    length,
    rank_block,
    num_tokens,
    num_slots,
    MODULES: tl.constexpr,
    MAX_RANK: tl.constexpr,
    PAGE: tl.constexpr,
    LORA_SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """h = the scaled sum of all slices of a block of rank rows, as `lora_expand` computes it."""
    row = rank_block * BLOCK_R + tl.arange(0, BLOCK_R)
    module = row // MAX_RANK
    rank_row = row % MAX_RANK
    in_table = row < MODULES * MAX_RANK
    row_rank = tl.load(rank + module * num_slots + slot, mask=in_table, other=0)
    row_scale = tl.load(lora_scale + module * num_slots + slot, mask=in_table, other=0.0)
    position = tl.arange(0, BLOCK_M)
    live_token = position < length
    token = tl.load(sorted_tokens + start + position, mask=live_token, other=0).to(tl.int64)
    live = live_token[:, None] & (rank_row < row_rank)[None, :]
    columns = module.to(tl.int64) * num_tokens * MAX_RANK + rank_row
    tile = token[:, None] * MAX_RANK + columns[None, :]
    plane = num_tokens.to(tl.int64) * MODULES * MAX_RANK
    h_sum = tl.load(h_slices + tile, mask=live, other=0.0, cache_modifier=".cg")
    for split in tl.static_range(1, LORA_SPLITS):
        h_sum += tl.load(h_slices + split * plane + tile, mask=live, other=0.0, cache_modifier=".cg")
    tl.store(h + tile, (h_sum * row_scale[None, :]).to(h.dtype.element_ty), mask=live)
