"""All of a decode step between the projections of q, k, v and of the output, in one launch, for few requests.

Called by `FlashInferAttention`. Head norms and rotation as in `qk_norm_rope`, the write of the new keys and values into
the paged cache, attention, and its merge: slices of a request's tokens are summed by programs of their own ("split
KV", Dao et al., "Flash-Decoding", 2023), and the last to finish adds them up, in order. Shapes: B requests of one new
token each, H query heads, K key/value heads, G = H / K, D head size.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.decode_attention_config import BLOCK_HEADS, decode_attention_config, serves_head_group
from tensorrt_lora.kernels.decode_attention_workspace import DecodeAttentionWorkspace
from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.paged_attention import chunk_mask, prefill_attention
from tensorrt_lora.kernels.paged_tile import cache_row, cache_rows, load_tile, prefetch_tile
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.qk_norm_rope import KvCacheWrite, load_halves, norm_rope_halves, qk_norm_rope_reference
from tensorrt_lora.kernels.split_softmax import attend, merge_slices, store_slice


@dataclass(slots=True)
class HeadNormRope:
    """What turns projected heads into queries and keys, as in `qk_norm_rope`."""

    position_ids: Tensor
    """[B] int64 or int32."""
    cos_sin_cache: Tensor
    """[positions, D] float32, contiguous: D/2 cosines, then D/2 sines."""
    q_weight: Tensor | None
    """[D] in q's dtype; None, with `k_weight`, for no norm."""
    k_weight: Tensor | None
    eps: float


@dataclass(slots=True)
class PageTables:
    """Where each request's tokens lie, the new one included; all int32, written before the step, not in it."""

    indptr: Tensor
    """[B + 1]: where each request begins in `page_ids`."""
    page_ids: Tensor
    """At least [indptr[B]]: ceil(length / page_size) pages of each request."""
    last_page_len: Tensor
    """[B]: tokens in the last of them, 1..page_size."""


def fused_decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm_rope: HeadNormRope,
    kv_cache: Tensor,
    pages: PageTables,
    workspace: DecodeAttentionWorkspace,
) -> Tensor:
    """`qk_norm_rope` of one new token of each request, its write into the cache, and attention over that.

    How tokens are divided follows from B, the sizes of the model and the cache, and a request's own length: equal
    batches give equal bits, captured or not.

    Args:
        q: [B, H * D], rows may be strided; stays as it is.
        k: [B, K * D], likewise.
        v: [B, K * D], likewise.
        norm_rope: of these tokens.
        kv_cache: one layer, [pages, 2 (key, value), page_size, K, D], contiguous, in q's dtype. The place of a new
            token is its request's alone, but for padding rows, which may share page 0.
        pages: of these requests.
        workspace: made for at least B requests and H heads of such a cache.

    Returns:
        [B, H * D], contiguous.
    """
    requests, head_dim = q.shape[0], kv_cache.shape[-1]
    assert q.shape[1] % head_dim == 0 and head_dim % 2 == 0
    assert k.shape == v.shape == (requests, kv_cache.shape[3] * head_dim) and kv_cache.is_contiguous()
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert q.dtype == k.dtype == v.dtype == kv_cache.dtype
    assert serves_head_group(q.shape[1] // head_dim, kv_cache.shape[3])
    assert norm_rope.position_ids.shape == (requests,) and norm_rope.position_ids.is_contiguous()
    assert norm_rope.cos_sin_cache.shape[1] == head_dim and norm_rope.cos_sin_cache.is_contiguous()
    assert (norm_rope.q_weight is None) == (norm_rope.k_weight is None)
    assert pages.indptr.shape == (requests + 1,) and pages.last_page_len.shape == (requests,)
    if use_triton(q):
        return _fused_decode_attention_triton(q, k, v, norm_rope, kv_cache, pages, workspace)
    return fused_decode_attention_reference(q, k, v, norm_rope, kv_cache, pages, workspace)


def fused_decode_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm_rope: HeadNormRope,
    kv_cache: Tensor,
    pages: PageTables,
    workspace: DecodeAttentionWorkspace,
) -> Tensor:
    """The same in torch, one request after the other; needs no workspace."""
    head_dim, page_size = kv_cache.shape[-1], kv_cache.shape[2]
    bounds = pages.indptr.tolist()
    page_ids = [pages.page_ids[start:stop].long() for start, stop in pairwise(bounds)]
    last_page_len = pages.last_page_len.long()
    newest_pages = torch.stack([ids[-1] for ids in page_ids]) if page_ids else last_page_len
    q, k = q.clone(), k.clone()
    qk_norm_rope_reference(
        q,
        k,
        norm_rope.position_ids,
        norm_rope.cos_sin_cache,
        head_dim,
        norm_rope.q_weight,
        norm_rope.k_weight,
        norm_rope.eps,
        KvCacheWrite(v, kv_cache, newest_pages * page_size + last_page_len - 1),
    )
    out = torch.empty_like(q)
    for row, ids in enumerate(page_ids):
        kv_len = (len(ids) - 1) * page_size + int(last_page_len[row])
        mask = chunk_mask(1, kv_len, q.dtype, q.device)
        query = q[row : row + 1].unflatten(1, (-1, head_dim))
        out[row] = prefill_attention(query, kv_cache, ids, kv_len, mask).flatten()
    return out


def _fused_decode_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm_rope: HeadNormRope,
    kv_cache: Tensor,
    pages: PageTables,
    workspace: DecodeAttentionWorkspace,
) -> Tensor:
    requests = q.shape[0]
    num_pages, _, page_size, kv_heads, head_dim = kv_cache.shape
    group = q.shape[1] // head_dim // kv_heads
    out = q.new_empty(q.shape)
    if requests == 0:
        return out
    config = decode_attention_config(requests, kv_heads, head_dim, num_pages * page_size)
    assert workspace.sums.numel() >= requests * kv_heads * config.splits * group * head_dim
    assert workspace.counters.numel() >= requests * kv_heads
    programmatic = programmatic_launch(q)
    _fused_decode_attention_kernel[config.splits, kv_heads, requests](
        q,
        k,
        v,
        # A tensor stands in for what the kernel does not read.
        q if norm_rope.q_weight is None else norm_rope.q_weight,
        k if norm_rope.k_weight is None else norm_rope.k_weight,
        norm_rope.position_ids,
        norm_rope.cos_sin_cache,
        kv_cache,
        pages.indptr,
        pages.page_ids,
        pages.last_page_len,
        workspace.sums,
        workspace.stats,
        workspace.counters,
        out,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        GROUP=group,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        EPS=norm_rope.eps,
        NORM=norm_rope.q_weight is not None,
        SPLITS=config.splits,
        BLOCK_HEADS=BLOCK_HEADS,
        BLOCK_GROUP=triton.next_power_of_2(group),
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        BLOCK_TOKENS=config.block_tokens,
        PREFETCH=programmatic and head_dim * kv_cache.itemsize % 16 == 0,
        PROGRAMMATIC=programmatic,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(programmatic),
    )
    return out


# Of these single values are read, so that their alignment does not matter.
SINGLE_VALUES = ["position_ids", "indptr", "page_ids", "last_page_len", "stats", "counters"]


@triton.jit(do_not_specialize_on_alignment=SINGLE_VALUES)
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
    sums,
    stats,
    counters,
    out,
    q_stride,
    k_stride,
    v_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    EPS: tl.constexpr,
    NORM: tl.constexpr,
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
    split = tl.program_id(0)
    kv_head = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    first_page = tl.load(indptr + request)
    num_pages = tl.load(indptr + request + 1) - first_page
    pages = page_ids + first_page
    newest = (num_pages - 1) * PAGE_SIZE + tl.load(last_page_len + request) - 1
    # Slices are whole tiles, so that a short request has few: nothing is left for the programs behind the last one.
    width = tl.cdiv(newest + 1, SPLITS * BLOCK_TOKENS) * BLOCK_TOKENS
    slices = newest // width + 1
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
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
    if split >= slices:
        return

    # All that is read is under way before anything is computed.
    # The one key in every row: next to each query for their product.
    keys = k + request * k_stride + head_column + head * 0 + half
    new_first = tl.load(keys, mask=in_half & is_newest, other=0.0)
    new_second = tl.load(keys + HEAD_DIM // 2, mask=in_half & is_newest, other=0.0)
    d = tl.arange(0, BLOCK_DIM)
    has_value = (d < HEAD_DIM) & is_newest
    new_value = tl.load(v + request * v_stride + head_column + d, mask=has_value, other=0.0)
    k_first, k_second, values = load_tile(head_cache, rows, first, last, ROW, HEAD_DIM, PAGE_SIZE)
    tl.debug_barrier()  # or the assembler would move some of these loads behind the norms
    queries = q + request * q_stride + (kv_head * GROUP + head) * HEAD_DIM + half
    q_live = (head < GROUP) & in_half
    q_first = tl.load(queries, mask=q_live, other=0.0)
    q_second = tl.load(queries + HEAD_DIM // 2, mask=q_live, other=0.0)
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
