"""The kernel of `lora_silu_and_mul_prefill`: gate and up are read once, in whole lines, ahead of what they wait for.

Launched by that file alone. Base rows are in no tile of a batch, but the last of its sorted tokens: they have the tiles
behind those in use.
"""

import triton
import triton.language as tl

from tensorrt_lora.kernels.activation import silu_product
from tensorrt_lora.kernels.lora_add import load_row
from tensorrt_lora.kernels.lora_expand import load_h
from tensorrt_lora.kernels.lora_silu_and_mul_decode_kernel import b_rows, load_b
from tensorrt_lora.kernels.quantized_activation import divide_to_fp8, fp8_scale, largest_magnitude


@triton.jit(
    do_not_specialize=["num_tokens", "max_tiles", "blocks", "num_slots", "page_stride", "scale_stride"],
    do_not_specialize_on_alignment=[
        "scale",
        "static_scale",
        "page_table",
        "rank",
        "lora_scale",
        "extras",
        "sorted_tokens",
        "tile_slot",
        "tile_start",
        "tile_len",
    ],
)
def _lora_silu_and_mul_prefill_kernel(
    gate_up,
    h,
    b_pool,
    out,
    values,
    scale,
    static_scale,
    page_table,
    rank,
    lora_scale,
    extras,
    sorted_tokens,
    tile_slot,
    tile_start,
    tile_len,
    num_tokens,
    max_tiles,
    blocks,
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
    SPLITS: tl.constexpr,
    QUANTIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    COUNTED: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: `blocks` times BLOCK_N columns of a tile's tokens, or of BLOCK_M base rows.

    With a scale for the whole token, `scale` takes the maxima of a program's columns.
    """
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.program_id(1)
    slot = tl.load(tile_slot + tile, mask=tile < max_tiles, other=-1)
    start = tl.load(tile_start + tile, mask=slot >= 0, other=0)
    length = tl.load(tile_len + tile, mask=slot >= 0, other=0)
    if slot < 0:
        start = _base_start(tile_slot, tile_start, tile_len, tile, max_tiles, BLOCK_M, COUNTED)
        length = tl.minimum(num_tokens - start, BLOCK_M)
    is_used = slot >= 0
    gate_rank = tl.load(rank + slot, mask=is_used, other=0)
    up_rank = tl.load(rank + num_slots + slot, mask=is_used, other=0)
    gate_scale = tl.load(lora_scale + slot, mask=is_used, other=0.0)
    up_scale = tl.load(lora_scale + num_slots + slot, mask=is_used, other=0.0)
    gate_flags = tl.load(extras + slot, mask=is_used, other=0)
    up_flags = tl.load(extras + num_slots + slot, mask=is_used, other=0)
    if QUANTIZE == "static":
        row_scale = tl.load(static_scale)
    position = tl.arange(0, BLOCK_M)
    live_token = position < length
    token = tl.load(sorted_tokens + start + position, mask=live_token, other=0).to(tl.int64)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
    if length <= 0:
        return

    pages = page_table + tl.maximum(slot, 0) * page_stride
    rank_row = tl.arange(0, BLOCK_R)
    b_row = b_rows(pages, rank_row, tl.maximum(gate_rank, up_rank), b_row_stride, PAGE)
    gate_h_rows = h + token * MAX_RANK
    up_h_rows = gate_h_rows + num_tokens.to(tl.int64) * MAX_RANK
    split_stride = num_tokens.to(tl.int64) * 2 * MAX_RANK
    dtype: tl.constexpr = out.dtype.element_ty
    gate_h = load_h(gate_h_rows, rank_row, gate_rank, gate_scale, live_token, split_stride, PAGE, SPLITS).to(dtype)
    up_h = load_h(up_h_rows, rank_row, up_rank, up_scale, live_token, split_stride, PAGE, SPLITS).to(dtype)
    gate_lora = (b_pool, gate_h, gate_h_rows, gate_rank, gate_scale, gate_flags)
    up_lora = (b_pool + WIDTH, up_h, up_h_rows, up_rank, up_scale, up_flags)
    slot_lora = (pages, b_row, b_row_stride, live_token, split_stride)
    sizes: tl.constexpr = (WIDTH, MAX_RANK, PAGE, BIAS, GAIN, SPLITS, BLOCK_R)

    rows = gate_up + token * gate_up_stride
    out_row = token * WIDTH
    largest = tl.zeros((BLOCK_M,), tl.float32)
    HALVES: tl.constexpr = 2 if QUANTIZE == "group" else 1
    first = tl.program_id(0) * blocks
    for block in range(first, tl.minimum(first + blocks, tl.cdiv(WIDTH, BLOCK_N * HALVES))):
        column = block * (BLOCK_N * HALVES) + tl.arange(0, BLOCK_N)
        product = _silu_block(rows, column, live_token, gate_lora, up_lora, slot_lora, sizes)
        live = live_token[:, None] & (column < WIDTH)[None, :]
        offset = out_row[:, None] + column[None, :]
        tl.store(out + offset, product, mask=live)
        if QUANTIZE == "token":
            largest = tl.maximum(largest, largest_magnitude(product.to(tl.float32), axis=1))
        elif QUANTIZE == "static":
            quantized = divide_to_fp8(product, row_scale, values.dtype.element_ty, BOUNDED=False)
            tl.store(values + offset, quantized, mask=live)
        elif QUANTIZE == "group":
            second = _silu_block(rows, column + BLOCK_N, live_token, gate_lora, up_lora, slot_lora, sizes)
            live_second = live_token[:, None] & (column + BLOCK_N < WIDTH)[None, :]
            tl.store(out + offset + BLOCK_N, second, mask=live_second)
            largest = tl.maximum(
                largest_magnitude(product.to(tl.float32), axis=1), largest_magnitude(second.to(tl.float32), axis=1)
            )
            group_scale = fp8_scale(largest)
            quantized = divide_to_fp8(product, group_scale[:, None], values.dtype.element_ty, BOUNDED=True)
            tl.store(values + offset, quantized, mask=live)
            quantized = divide_to_fp8(second, group_scale[:, None], values.dtype.element_ty, BOUNDED=True)
            tl.store(values + offset + BLOCK_N, quantized, mask=live_second)
            tl.store(scale + token + block * scale_stride, group_scale, mask=live_token)
    if QUANTIZE == "token":
        tl.store(scale + token * tl.num_programs(0) + tl.program_id(0), largest, mask=live_token)
    elif QUANTIZE == "static":
        tl.store(scale + token, tl.full(token.shape, 1.0, tl.float32) * row_scale, mask=live_token & (first == 0))


@triton.jit
def _base_start(tile_slot, tile_start, tile_len, tile, max_tiles, BLOCK_M: tl.constexpr, COUNTED: tl.constexpr):
    """Where among the sorted tokens the base rows of a program begin whose tile is not in use."""
    used = 0
    for first in range(0, max_tiles, COUNTED):
        position = first + tl.arange(0, COUNTED)
        slots = tl.load(tile_slot + position, mask=position < max_tiles, other=-1)
        used += tl.sum((slots >= 0).to(tl.int32), axis=0)
    last_start = tl.load(tile_start + used - 1, mask=used > 0, other=0)
    last_length = tl.load(tile_len + used - 1, mask=used > 0, other=0)
    return last_start + last_length + (tile - used) * BLOCK_M


@triton.jit
def _silu_block(rows, column, live_token, gate_lora, up_lora, slot_lora, sizes: tl.constexpr):
    """silu(gate) * up [BLOCK_M, BLOCK_N] of a tile's rows, with their LoRA, in the output's dtype."""
    WIDTH: tl.constexpr = sizes[0]
    live = live_token[:, None] & (column < WIDTH)[None, :]
    in_rows = rows[:, None] + column[None, :]
    gate = tl.load(in_rows, mask=live, other=0.0)
    up = tl.load(in_rows + WIDTH, mask=live, other=0.0)
    gate = _add_lora(gate, column, gate_lora, slot_lora, sizes)
    up = _add_lora(up, column, up_lora, slot_lora, sizes)
    return silu_product(gate.to(tl.float32), up.to(tl.float32), gate.dtype)


@triton.jit
def _add_lora(y, column, lora, slot_lora, sizes: tl.constexpr):
    """y of one module with its LoRA, computed and rounded as by `lora_expand`."""
    b_module, h_tile, h_rows, slot_rank, slot_scale, flags = lora
    pages, b_row, b_row_stride, live_token, split_stride = slot_lora
    WIDTH: tl.constexpr = sizes[0]
    MAX_RANK: tl.constexpr = sizes[1]
    PAGE: tl.constexpr = sizes[2]
    BIAS: tl.constexpr = sizes[3]
    GAIN: tl.constexpr = sizes[4]
    SPLITS: tl.constexpr = sizes[5]
    BLOCK_R: tl.constexpr = sizes[6]
    rank_row = tl.arange(0, BLOCK_R)
    product = tl.dot(h_tile, load_b(b_module, b_row, rank_row, slot_rank, column, WIDTH), input_precision="ieee")
    if BLOCK_R < MAX_RANK:
        for first_rank in range(BLOCK_R, slot_rank, BLOCK_R):
            row = first_rank + rank_row
            more_h = load_h(h_rows, row, slot_rank, slot_scale, live_token, split_stride, PAGE, SPLITS)
            more_row = b_rows(pages, row, slot_rank, b_row_stride, PAGE)
            more_b = load_b(b_module, more_row, row, slot_rank, column, WIDTH)
            product = tl.dot(more_h.to(y.dtype), more_b, product, input_precision="ieee")
    if flags > 0:
        bias_row = tl.zeros(column.shape, dtype=tl.int32) + slot_rank
        gain_row = bias_row + (flags & BIAS) // BIAS
        has_bias = (column < WIDTH) & ((flags & BIAS) != 0)
        has_gain = (column < WIDTH) & ((flags & GAIN) != 0)
        bias = load_row(b_module + column, pages, bias_row, has_bias, b_row_stride, PAGE=PAGE)
        gain = load_row(b_module + column, pages, gain_row, has_gain, b_row_stride, PAGE=PAGE)
        delta = tl.fma(product, 1.0 + gain[None, :], bias[None, :]).to(y.dtype)
        wide = y.to(tl.float32)
        y = (tl.fma(wide, gain[None, :], wide) + delta.to(tl.float32)).to(y.dtype)
    else:
        y = (y.to(tl.float32) + product.to(y.dtype).to(tl.float32)).to(y.dtype)
    return y
