"""The kernel of `lora_linear`: which program does what, and how programs wait for each other.

Launched by `lora_linear_triton` alone. Its parts are the device functions of `streamed_linear` and `lora_shrink`.
"""

import triton
import triton.language as tl

from tensorrt_lora.kernels.lora_add import load_row
from tensorrt_lora.kernels.lora_shrink import is_live_block, shrink_block
from tensorrt_lora.kernels.streamed_linear import (
    NOT_SPECIALIZED,
    is_last_split,
    load_scales,
    stream_sum,
    sum_of_splits,
)


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
