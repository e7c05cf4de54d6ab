"""The kernel of `fused_decode_attention`: which program does what, and in what order it reads.

Launched by that op alone. Its parts are the device functions of `qk_norm_rope_kernel`, `paged_tile`, `split_softmax`
and, for a LoRA delta that the projection left to be added, `lora_delta`.
"""

import triton
import triton.language as tl

from tensorrt_lora.kernels.lora_delta import (
    DELTA_NOT_SPECIALIZED,
    DELTA_SINGLE_VALUES,
    add_delta,
    load_adapter,
    load_delta,
)
from tensorrt_lora.kernels.paged_tile import cache_row, cache_rows, load_tile, prefetch_tile
from tensorrt_lora.kernels.qk_norm_rope_kernel import add_delta_halves, load_delta_halves, load_halves, norm_rope_halves
from tensorrt_lora.kernels.split_softmax import attend, merge_slices, store_slice

# Of these single values are read, so that their alignment does not matter.
SINGLE_VALUES = [
    "position_ids",
    "indptr",
    "page_ids",
    "last_page_len",
    "slice_tokens",
    "stats",
    "counters",
    *DELTA_SINGLE_VALUES,
]


@triton.jit(do_not_specialize=DELTA_NOT_SPECIALIZED, do_not_specialize_on_alignment=SINGLE_VALUES)
def _fused_decode_attention_kernel(
    q,
    k,
    v,
    q_weight,
    k_weight,
    position_ids,
    cos_sin_cache,
    kv_cache,
    indptr,
    page_ids,
    last_page_len,
    slice_tokens,
    sums,
    stats,
    counters,
    out,
    q_stride,
    k_stride,
    v_stride,
    delta,
    b_pool,
    page_table,
    rank,
    extras,
    token_slots,
    num_slots,
    b_row_stride,
    page_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    EPS: tl.constexpr,
    NORM: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    PREFETCH: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: the query heads of one key head over one slice of a request's tokens."""
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
    # Slices that short requests lack come last: a program that exits takes the place of one that works for 0.4 us.
    kv_head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    first_page = tl.load(indptr + request)
    num_pages = tl.load(indptr + request + 1) - first_page
    pages = page_ids + first_page
    newest = (num_pages - 1) * PAGE_SIZE + tl.load(last_page_len + request) - 1
    # As even as whole tiles allow. Nothing is left for the programs behind the last slice.
    wanted = tl.load(slice_tokens)
    slices = tl.minimum(tl.maximum((newest + 1 + wanted // 2) // wanted, 1), SPLITS)
    width = tl.cdiv(newest + 1, slices * BLOCK_TOKENS) * BLOCK_TOKENS
    slices = newest // width + 1
    if split >= slices:
        if PROGRAMMATIC:
            tl.extra.cuda.gdc_wait()
        return
    first = split * width
    # Nobody reads the newest token from the cache: the last slice computes it and adds it from registers.
    last = tl.minimum(first + width, newest)
    is_newest = split == slices - 1
    newest_row = cache_row(pages, newest, is_newest, PAGE_SIZE)
    rows = cache_rows(pages, first, last, PAGE_SIZE, BLOCK_TOKENS)
    next_rows = cache_rows(pages, first + BLOCK_TOKENS, last, PAGE_SIZE, BLOCK_TOKENS)
    head_column = kv_head * HEAD_DIM
    head_cache = kv_cache + head_column
    ROW: tl.constexpr = KV_HEADS * HEAD_DIM
    if PREFETCH:
        prefetch_tile(head_cache, pages, first, last, ROW, HEAD_DIM, PAGE_SIZE, BLOCK_TOKENS)
    # Shaped as in `qk_norm_rope`, whose sums of squares have the same order: keys in the cache have the same bits.
    half = tl.broadcast_to(tl.arange(0, BLOCK_HALF)[None, :], (BLOCK_HEADS, BLOCK_HALF))
    in_half = half < HEAD_DIM // 2
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    angles = cos_sin_cache + tl.load(position_ids + request).to(tl.int64) * HEAD_DIM
    q_parameters = load_halves(q_weight, angles, half, in_half, HEAD_DIM, NORM)
    k_parameters = load_halves(k_weight, angles, half, in_half, HEAD_DIM, NORM)
    if HAS_DELTA:
        q_adapter = load_adapter(token_slots, page_table, rank, extras, request, 0, num_slots, page_stride)
        k_adapter = load_adapter(token_slots, page_table, rank, extras, request, 1, num_slots, page_stride)
        v_adapter = load_adapter(token_slots, page_table, rank, extras, request, 2, num_slots, page_stride)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()

    # All that is read is under way before anything is computed.
    # The one key in every row: next to each query for their product.
    keys = k + request * k_stride + head_column + head * 0 + half
    new_first = tl.load(keys, mask=in_half & is_newest, other=0.0)
    new_second = tl.load(keys + HEAD_DIM // 2, mask=in_half & is_newest, other=0.0)
    d = tl.arange(0, BLOCK_DIM)
    has_value = (d < HEAD_DIM) & is_newest
    new_value = tl.load(v + request * v_stride + head_column + d, mask=has_value, other=0.0)
    if HAS_DELTA:
        q_column = (kv_head * GROUP + head) * HEAD_DIM + half
        k_column = KV_HEADS * GROUP * HEAD_DIM + head_column + head * 0 + half
        v_column = KV_HEADS * (GROUP + 1) * HEAD_DIM + head_column + d
        row_delta = delta + request * (KV_HEADS * (GROUP + 2) * HEAD_DIM)
        k_deltas = load_delta_halves(row_delta + k_column, in_half & is_newest, k_adapter, HEAD_DIM)
        v_delta = load_delta(row_delta + v_column, has_value, v_adapter)
    k_first, k_second, values = load_tile(head_cache, rows, first, last, ROW, HEAD_DIM, PAGE_SIZE)
    tl.debug_barrier()  # or the assembler would move some of these loads behind the norms
    queries = q + request * q_stride + (kv_head * GROUP + head) * HEAD_DIM + half
    q_live = (head < GROUP) & in_half
    q_first = tl.load(queries, mask=q_live, other=0.0)
    q_second = tl.load(queries + HEAD_DIM // 2, mask=q_live, other=0.0)
    if HAS_DELTA:
        q_deltas = load_delta_halves(row_delta + q_column, q_live, q_adapter, HEAD_DIM)
        q_first, q_second = add_delta_halves(
            q_first, q_second, q_deltas, q_live, b_pool + q_column, b_row_stride, q_adapter, HEAD_DIM
        )
        new_first, new_second = add_delta_halves(
            new_first, new_second, k_deltas, in_half & is_newest, b_pool + k_column, b_row_stride, k_adapter, HEAD_DIM
        )
        new_value = add_delta(new_value, v_delta, has_value, b_pool + v_column, b_row_stride, v_adapter)
    q_first, q_second = norm_rope_halves(q_first, q_second, q_parameters, HEAD_DIM, EPS, NORM)
    new_first, new_second = norm_rope_halves(new_first, new_second, k_parameters, HEAD_DIM, EPS, NORM)
    new_place = head_cache + newest_row.to(tl.int64) * ROW
    once = (head == 0) & in_half & is_newest
    tl.store(new_place + head * 0 + half, new_first, mask=once)
    tl.store(new_place + head * 0 + half + HEAD_DIM // 2, new_second, mask=once)
    tl.store(new_place + PAGE_SIZE * ROW + d, new_value, mask=has_value)

    # Of scores the base 2 logarithm is taken: 2^x is what the hardware has.
    SCALE: tl.constexpr = 1.4426950408889634 / HEAD_DIM**0.5
    products = q_first.to(tl.float32) * new_first.to(tl.float32) + q_second.to(tl.float32) * new_second.to(tl.float32)
    largest = tl.where(is_newest, tl.sum(products, axis=1) * SCALE, -float("inf"))
    total = tl.where(is_newest, tl.full((BLOCK_HEADS,), 1.0, tl.float32), 0.0)
    acc = tl.broadcast_to(new_value.to(tl.float32)[None, :], (BLOCK_HEADS, BLOCK_DIM))
    # Once more 0 from `last` on: a tile that comes straight from a load is waited for where it is loaded.
    token = first + tl.arange(0, BLOCK_TOKENS)[:, None]
    k_first = tl.where(token < last, k_first, 0.0)
    k_second = tl.where(token < last, k_second, 0.0)
    values = tl.where(token < last, values, 0.0)
    largest, total, acc = attend(q_first, q_second, k_first, k_second, values, first, last, largest, total, acc, SCALE)
    for start in range(first + BLOCK_TOKENS, last, BLOCK_TOKENS):
        k_first, k_second, values = load_tile(head_cache, next_rows, start, last, ROW, HEAD_DIM, PAGE_SIZE)
        # A tile ahead: loads that wait for a load of their own turn would not be pipelined as deep.
        next_rows = cache_rows(pages, start + BLOCK_TOKENS, last, PAGE_SIZE, BLOCK_TOKENS)
        largest, total, acc = attend(
            q_first, q_second, k_first, k_second, values, start, last, largest, total, acc, SCALE
        )

    pair = request * KV_HEADS + kv_head
    pair_sums = sums + pair * (SPLITS * GROUP * HEAD_DIM)
    pair_stats = stats + pair * (SPLITS * 2 * GROUP)
    store_slice(pair_sums, pair_stats, split, largest, total, acc, GROUP, HEAD_DIM)
    tl.debug_barrier()  # all of the slice is written before it is counted
    if tl.atomic_add(counters + pair, 1, sem="acq_rel") != slices - 1:
        return
    tl.store(counters + pair, 0)
    merged = merge_slices(pair_sums, pair_stats, slices, GROUP, HEAD_DIM, SPLITS, BLOCK_GROUP, BLOCK_DIM)
    row = tl.arange(0, BLOCK_GROUP)[:, None]
    heads_out = out + (pair * GROUP + row) * HEAD_DIM + d[None, :]
    tl.store(heads_out, merged.to(out.dtype.element_ty), mask=(row < GROUP) & (d < HEAD_DIM)[None, :])
