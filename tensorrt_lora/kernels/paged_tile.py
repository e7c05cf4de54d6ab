"""Tiles of one key head's cached tokens, by way of a page table.

Called inside `fused_decode_attention`'s kernel. `head_cache` points to the head in the first row of a layer's cache
[pages, 2 (key, value), PAGE_SIZE, K, D], whose rows are ROW = K * D values; `pages` to the request's page ids.
"""

import triton
import triton.language as tl


@triton.jit
def cache_row(pages, token, live, PAGE_SIZE: tl.constexpr):
    """Row of a token's key in a layer's cache, int32: a page is PAGE_SIZE keys, then PAGE_SIZE values."""
    page = tl.load(pages + token // PAGE_SIZE, mask=live, other=0)
    return page * (2 * PAGE_SIZE) + token % PAGE_SIZE


@triton.jit
def cache_rows(pages, first, last, PAGE_SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    """The same for a tile of tokens from `first` on; row 0 of page 0, or next to it, from `last` on."""
    token = first + tl.arange(0, BLOCK_TOKENS)
    return cache_row(pages, token, token < last, PAGE_SIZE)


@triton.jit
def prefetch_tile(
    head_cache,
    pages,
    first,
    last,
    ROW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """Ask for the first tile's keys and values; a request into the second-level cache reads nothing."""
    if first < last:
        lane = tl.arange(0, 2 * BLOCK_TOKENS)
        token = tl.minimum(first + lane % BLOCK_TOKENS, last - 1)
        row = cache_row(pages, token, token < last, PAGE_SIZE) + lane // BLOCK_TOKENS * PAGE_SIZE
        itemsize: tl.constexpr = head_cache.dtype.element_ty.primitive_bitwidth // 8
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], $2; // $0",
            "=r,l,r",
            [(head_cache + row.to(tl.int64) * ROW).to(tl.int64, bitcast=True), HEAD_DIM * itemsize],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def load_tile(head_cache, rows, first, last, ROW: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr):
    """(first halves of keys, second halves, values) of a tile of tokens; 0 from `last` on, whatever is there."""
    HALF: tl.constexpr = HEAD_DIM // 2
    BLOCK_TOKENS: tl.constexpr = rows.shape[0]
    live = (first + tl.arange(0, BLOCK_TOKENS) < last)[:, None]
    half = tl.arange(0, triton.next_power_of_2(HALF))[None, :]
    d = tl.arange(0, triton.next_power_of_2(HEAD_DIM))[None, :]
    keys = head_cache + rows.to(tl.int64)[:, None] * ROW + half
    k_first = tl.load(keys, mask=live & (half < HALF), other=0.0)
    k_second = tl.load(keys + HALF, mask=live & (half < HALF), other=0.0)
    values = head_cache + PAGE_SIZE * ROW + rows.to(tl.int64)[:, None] * ROW + d
    return k_first, k_second, tl.load(values, mask=live & (d < HEAD_DIM), other=0.0)
