"""The kernel of `lora_silu_and_mul_decode`: B is loaded while the projection still runs.

Launched by that file alone; `lora_silu_and_mul_prefill_kernel` shares the functions that find and load B.
"""

import triton
import triton.language as tl

from tensorrt_lora.kernels.activation import silu_product
from tensorrt_lora.kernels.lora_add import load_row
from tensorrt_lora.kernels.quantized_activation import divide_to_fp8, fp8_scale, largest_magnitude


@triton.jit(
    do_not_specialize=["num_tokens", "max_tiles", "num_slots", "page_stride", "scale_stride"],
    do_not_specialize_on_alignment=[
        "scale",
        "static_scale",
        "page_table",
        "rank",
        "extras",
        "token_slots",
        "sorted_tokens",
        "tile_slot",
        "tile_start",
        "tile_len",
    ],
)
def _lora_silu_and_mul_kernel(
    gate_up,
    h,
    b_pool,
    out,
    values,
    scale,
    static_scale,
    page_table,
    rank,
    extras,
    token_slots,
    sorted_tokens,
    tile_slot,
    tile_start,
    tile_len,
    num_tokens,
    max_tiles,
    num_slots,
    gate_up_stride,
    b_row_stride,
    page_stride,
    scale_stride,
    WIDTH: tl.constexpr,
    MAX_RANK: tl.constexpr,
    PAGE: tl.constexpr,
    BIAS: tl.constexpr,
    GAIN: tl.constexpr,
    QUANTIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: BLOCK_N columns of a tile's tokens, or of the base rows among BLOCK_M tokens.

    With a scale for the whole token, `scale` takes the parts' maxima.
    """
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.program_id(0)
    tile = tl.program_id(1)
    # Base rows are in no tile: behind the tiles come programs that look for them among all tokens.
    is_tile = tile < max_tiles
    slot = tl.load(tile_slot + tile, mask=is_tile, other=-1)
    start = tl.load(tile_start + tile, mask=is_tile, other=0) + tl.where(is_tile, 0, (tile - max_tiles) * BLOCK_M)
    length = tl.load(tile_len + tile, mask=is_tile, other=BLOCK_M)
    length = tl.minimum(length, num_tokens - start)

    rank_row = tl.arange(0, BLOCK_R)
    column = part * BLOCK_N + tl.arange(0, BLOCK_N)
    pages = page_table + tl.maximum(slot, 0) * page_stride
    gate_rank = tl.load(rank + slot, mask=slot >= 0, other=0)
    up_rank = tl.load(rank + num_slots + slot, mask=slot >= 0, other=0)
    gate_flags = tl.load(extras + slot, mask=slot >= 0, other=0)
    up_flags = tl.load(extras + num_slots + slot, mask=slot >= 0, other=0)
    largest_rank = tl.maximum(gate_rank, up_rank)
    b_row = b_rows(pages, rank_row, largest_rank, b_row_stride, PAGE)
    gate_b = load_b(b_pool, b_row, rank_row, gate_rank, column, WIDTH)
    up_b = load_b(b_pool + WIDTH, b_row, rank_row, up_rank, column, WIDTH)
    token, is_live = _find_tokens(sorted_tokens, token_slots, start, length, slot, tl.arange(0, BLOCK_M))
    # The tile's values one after the other: where a product of tensor cores leaves them, threads share the values of
    # a few rows, and would all compute the same.
    place = tl.arange(0, BLOCK_M * BLOCK_N)
    value_token, live = _find_tokens(sorted_tokens, token_slots, start, length, slot, place // BLOCK_N)
    value_column = part * BLOCK_N + place % BLOCK_N
    live &= value_column < WIDTH
    if QUANTIZE == "static":
        row_scale = tl.load(static_scale)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
    if tl.max(is_live.to(tl.int32), axis=0) == 0:
        return

    values_of_token = gate_up + value_token * gate_up_stride + value_column
    gate = tl.load(values_of_token, mask=live, other=0.0)
    up = tl.load(values_of_token + WIDTH, mask=live, other=0.0)
    h_rows = h + token * MAX_RANK
    up_offset = num_tokens.to(tl.int64) * MAX_RANK
    gate_h = _load_h(h_rows, is_live, rank_row, gate_rank)
    up_h = _load_h(h_rows + up_offset, is_live, rank_row, up_rank)
    gate_delta = tl.dot(gate_h, gate_b, input_precision="ieee")
    up_delta = tl.dot(up_h, up_b, input_precision="ieee")
    if BLOCK_R < MAX_RANK:
        for first_rank in range(BLOCK_R, largest_rank, BLOCK_R):
            next_row = first_rank + rank_row
            b_row = b_rows(pages, next_row, largest_rank, b_row_stride, PAGE)
            gate_b = load_b(b_pool, b_row, next_row, gate_rank, column, WIDTH)
            up_b = load_b(b_pool + WIDTH, b_row, next_row, up_rank, column, WIDTH)
            gate_h = _load_h(h_rows, is_live, next_row, gate_rank)
            up_h = _load_h(h_rows + up_offset, is_live, next_row, up_rank)
            gate_delta = tl.dot(gate_h, gate_b, gate_delta, input_precision="ieee")
            up_delta = tl.dot(up_h, up_b, up_delta, input_precision="ieee")

    gate_delta = tl.reshape(gate_delta, gate.shape)
    up_delta = tl.reshape(up_delta, up.shape)
    b_values = b_pool + value_column
    gate = _add_delta(gate, gate_delta, b_values, pages, gate_rank, gate_flags, live, b_row_stride, PAGE, BIAS, GAIN)
    up = _add_delta(up, up_delta, b_values + WIDTH, pages, up_rank, up_flags, live, b_row_stride, PAGE, BIAS, GAIN)
    product = silu_product(gate, up, out.dtype.element_ty)
    offset = value_token * WIDTH + value_column
    tl.store(out + offset, product, mask=live)

    tile_values = tl.reshape(product, (BLOCK_M, BLOCK_N))
    if QUANTIZE == "token":
        largest = largest_magnitude(tile_values.to(tl.float32), axis=1)
        tl.store(scale + token * tl.num_programs(0) + part, largest, mask=is_live)
    elif QUANTIZE == "group":
        group_scale = fp8_scale(largest_magnitude(tile_values.to(tl.float32), axis=1))
        quantized = divide_to_fp8(tile_values, group_scale[:, None], values.dtype.element_ty, BOUNDED=True)
        tl.store(values + offset, tl.reshape(quantized, product.shape), mask=live)
        tl.store(scale + token + part * scale_stride, group_scale, mask=is_live)
    elif QUANTIZE == "static":
        quantized = divide_to_fp8(product, row_scale, values.dtype.element_ty, BOUNDED=False)
        tl.store(values + offset, quantized, mask=live)
        tl.store(scale + token, tl.full(token.shape, 1.0, tl.float32) * row_scale, mask=is_live & (part == 0))


@triton.jit
def _find_tokens(sorted_tokens, token_slots, start, length, slot, position):
    """The tokens at `position` of a tile, int64, and which of them there are and have its slot."""
    in_tile = position < length
    token = tl.load(sorted_tokens + start + position, mask=in_tile, other=0)
    return token.to(tl.int64), in_tile & (tl.load(token_slots + token, mask=in_tile, other=0) == slot)


@triton.jit
def b_rows(pages, rank_row, slot_rank, b_row_stride, PAGE: tl.constexpr):
    """Where rank rows of a slot begin in `b_pool`."""
    page = tl.load(pages + rank_row // PAGE, mask=rank_row < slot_rank, other=0)
    return (page * PAGE + rank_row % PAGE).to(tl.int64) * b_row_stride


@triton.jit
def load_b(b_module, b_row, rank_row, slot_rank, column, WIDTH: tl.constexpr):
    """[rank rows, BLOCK_N] of a module's B, zeros beyond its rank."""
    mask = (rank_row < slot_rank)[:, None] & (column < WIDTH)[None, :]
    return tl.load(b_module + b_row[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def _load_h(h_rows, is_live, rank_row, slot_rank):
    """[BLOCK_M, rank rows] of a module's h: zeros where nothing was written."""
    mask = is_live[:, None] & (rank_row < slot_rank)[None, :]
    return tl.load(h_rows[:, None] + rank_row[None, :], mask=mask, other=0.0)


@triton.jit
def _add_delta(
    y,
    delta,
    b_values,
    pages,
    slot_rank,
    flags,
    live,
    b_row_stride,
    PAGE: tl.constexpr,
    BIAS: tl.constexpr,
    GAIN: tl.constexpr,
):
    """y with LoRA in float32, computed and rounded as by `lora_expand`."""
    wide = y.to(tl.float32)
    if flags > 0:
        bias_row = tl.zeros(y.shape, dtype=tl.int32) + slot_rank
        gain_row = bias_row + (flags & BIAS) // BIAS
        bias = load_row(b_values, pages, bias_row, live & ((flags & BIAS) != 0), b_row_stride, PAGE=PAGE)
        gain = load_row(b_values, pages, gain_row, live & ((flags & GAIN) != 0), b_row_stride, PAGE=PAGE)
        delta = tl.fma(delta, 1.0 + gain, bias)
        wide = tl.fma(wide, gain, wide)
    return (wide + delta.to(y.dtype).to(tl.float32)).to(y.dtype).to(tl.float32)
