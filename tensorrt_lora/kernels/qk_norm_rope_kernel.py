"""The kernel of `qk_norm_rope`, and how it finishes heads, which `fused_decode_attention` shares.

Launched by that op alone. Heads are read by halves, and so is a LoRA delta that the projection left to be added.
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


# Of these one value is read by a program, so that their alignment does not matter.
@triton.jit(
    do_not_specialize=DELTA_NOT_SPECIALIZED,
    do_not_specialize_on_alignment=["position_ids", "cache_slots", *DELTA_SINGLE_VALUES],
)
def _qk_norm_rope_kernel(
    q,
    k,
    v,
    q_weight,
    k_weight,
    position_ids,
    cos_sin_cache,
    kv_cache,
    cache_slots,
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
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    EPS: tl.constexpr,
    NORM: tl.constexpr,
    WRITE_KV: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: BLOCK_HEADS query heads, or key heads and their values, of one token."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    # As wide as the heads, so that each head reads weights and angles for itself: in one layout of registers
    # the threads have nothing to exchange but the sums of squares.
    half = tl.broadcast_to(tl.arange(0, BLOCK_HALF)[None, :], (BLOCK_HEADS, BLOCK_HALF))
    in_half = half < HEAD_DIM // 2
    query_groups = tl.cdiv(HEADS, BLOCK_HEADS)
    angles = cos_sin_cache + tl.load(position_ids + token).to(tl.int64) * HEAD_DIM
    DELTA_ROW: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    if group < query_groups:
        head = group * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
        live = (head < HEADS) & in_half
        heads = q + token * q_stride + head * HEAD_DIM + half
        parameters = load_halves(q_weight, angles, half, in_half, HEAD_DIM, NORM)
        if HAS_DELTA:
            adapter = load_adapter(token_slots, page_table, rank, extras, token, 0, num_slots, page_stride)
        if PROGRAMMATIC:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        first = tl.load(heads, mask=live, other=0.0)
        second = tl.load(heads + HEAD_DIM // 2, mask=live, other=0.0)
        if HAS_DELTA:
            column = head * HEAD_DIM + half
            deltas = load_delta_halves(delta + token * DELTA_ROW + column, live, adapter, HEAD_DIM)
            first, second = add_delta_halves(
                first, second, deltas, live, b_pool + column, b_row_stride, adapter, HEAD_DIM
            )
        first_query, second_query = norm_rope_halves(first, second, parameters, HEAD_DIM, EPS, NORM)
        tl.store(heads, first_query, mask=live)
        tl.store(heads + HEAD_DIM // 2, second_query, mask=live)
    else:
        head = (group - query_groups) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
        live = (head < KV_HEADS) & in_half
        column = head * HEAD_DIM + half
        parameters = load_halves(k_weight, angles, half, in_half, HEAD_DIM, NORM)
        if WRITE_KV:
            slot = tl.load(cache_slots + token)
        if HAS_DELTA:
            k_adapter = load_adapter(token_slots, page_table, rank, extras, token, 1, num_slots, page_stride)
            v_adapter = load_adapter(token_slots, page_table, rank, extras, token, 2, num_slots, page_stride)
        if PROGRAMMATIC:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        if WRITE_KV:
            values = v + token * v_stride + column
            first_value = tl.load(values, mask=live)
            second_value = tl.load(values + HEAD_DIM // 2, mask=live)
        heads = k + token * k_stride + column
        first = tl.load(heads, mask=live, other=0.0)
        second = tl.load(heads + HEAD_DIM // 2, mask=live, other=0.0)
        if HAS_DELTA:
            k_column = HEADS * HEAD_DIM + column
            v_column = k_column + KV_HEADS * HEAD_DIM
            k_deltas = load_delta_halves(delta + token * DELTA_ROW + k_column, live, k_adapter, HEAD_DIM)
            v_deltas = load_delta_halves(delta + token * DELTA_ROW + v_column, live, v_adapter, HEAD_DIM)
            first, second = add_delta_halves(
                first, second, k_deltas, live, b_pool + k_column, b_row_stride, k_adapter, HEAD_DIM
            )
            first_value, second_value = add_delta_halves(
                first_value, second_value, v_deltas, live, b_pool + v_column, b_row_stride, v_adapter, HEAD_DIM
            )
        first_key, second_key = norm_rope_halves(first, second, parameters, HEAD_DIM, EPS, NORM)
        tl.store(heads, first_key, mask=live)
        tl.store(heads + HEAD_DIM // 2, second_key, mask=live)
        if WRITE_KV:
            # A page is PAGE_SIZE key rows followed by PAGE_SIZE value rows.
            row = slot // PAGE_SIZE * (2 * PAGE_SIZE) + slot % PAGE_SIZE
            keys = kv_cache + row * (KV_HEADS * HEAD_DIM) + column
            tl.store(keys, first_key, mask=live)
            tl.store(keys + HEAD_DIM // 2, second_key, mask=live)
            values = keys + PAGE_SIZE * KV_HEADS * HEAD_DIM
            tl.store(values, first_value, mask=live)
            tl.store(values + HEAD_DIM // 2, second_value, mask=live)


@triton.jit
def load_halves(weight, angles, half, in_half, HEAD_DIM: tl.constexpr, NORM: tl.constexpr):
    """(cos, sin, first half of the weight, second half), each of the shape of `half`; no weight without a norm."""
    HALF: tl.constexpr = HEAD_DIM // 2
    cos = tl.load(angles + half, mask=in_half, other=0.0)
    sin = tl.load(angles + HALF + half, mask=in_half, other=0.0)
    if NORM:
        first = tl.load(weight + half, mask=in_half, other=0.0).to(tl.float32)
        second = tl.load(weight + HALF + half, mask=in_half, other=0.0).to(tl.float32)
        return cos, sin, first, second
    else:
        return cos, sin, cos, sin


@triton.jit
def load_delta_halves(columns, live, adapter, HEAD_DIM: tl.constexpr):
    """The delta of both halves of heads, of which `columns` are the first, as `load_delta`."""
    return load_delta(columns, live, adapter), load_delta(columns + HEAD_DIM // 2, live, adapter)


@triton.jit
def add_delta_halves(first, second, deltas, live, b_columns, b_row_stride, adapter, HEAD_DIM: tl.constexpr):
    """Both halves of heads with `deltas`, those of `load_delta_halves`, as `add_delta`; `b_columns` are the first's."""
    first_delta, second_delta = deltas
    second_columns = b_columns + HEAD_DIM // 2
    first = add_delta(first, first_delta, live, b_columns, b_row_stride, adapter)
    second = add_delta(second, second_delta, live, second_columns, b_row_stride, adapter)
    return first, second


@triton.jit
def norm_rope_halves(first, second, parameters, HEAD_DIM: tl.constexpr, EPS: tl.constexpr, NORM: tl.constexpr):
    """Both halves of heads [rows, BLOCK_HALF], finished. `parameters` are those of `load_halves`."""
    dtype: tl.constexpr = first.dtype
    cos, sin, first_weight, second_weight = parameters
    first = first.to(tl.float32)
    second = second.to(tl.float32)
    if NORM:
        square_sum = tl.sum(first * first + second * second, axis=1, keep_dims=True)
        inverse_rms = tl.rsqrt(square_sum / HEAD_DIM + EPS)
        first = (first * inverse_rms).to(dtype).to(tl.float32)
        second = (second * inverse_rms).to(dtype).to(tl.float32)
        first = (first * first_weight).to(dtype).to(tl.float32)
        second = (second * second_weight).to(dtype).to(tl.float32)
    first_out = (first * cos - second * sin).to(dtype)
    second_out = (second * cos + first * sin).to(dtype)
    return first_out, second_out
