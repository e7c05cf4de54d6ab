"""All of a decode step between the projections of q, k, v and of the output, in one launch.

Called by `FlashInferAttention`. Head norms and rotation as in `qk_norm_rope`, the write of the new keys and values into
the paged cache, attention, and its merge: slices of a request's tokens are summed by programs of their own ("split
KV", Dao et al., "Flash-Decoding", 2023), and the last to finish adds them up, in order. Shapes: B requests of one new
token each, H query heads, K key/value heads, G = H / K, D head size.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
from torch import Tensor

from tensorrt_lora.kernels.decode_attention_config import BLOCK_HEADS, decode_attention_config, serves_head_group
from tensorrt_lora.kernels.decode_attention_kernel import _fused_decode_attention_kernel
from tensorrt_lora.kernels.decode_attention_workspace import DecodeAttentionWorkspace
from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.lora_delta import LoraDelta, delta_arguments
from tensorrt_lora.kernels.paged_attention import chunk_mask, prefill_attention
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.qk_norm_rope import KvCacheWrite, qk_norm_rope_reference


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
    slice_tokens: Tensor
    """[1]: tokens that one program should read, by `balanced_slice`."""


def fused_decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm_rope: HeadNormRope,
    kv_cache: Tensor,
    pages: PageTables,
    workspace: DecodeAttentionWorkspace,
    delta: LoraDelta | None = None,
) -> Tensor:
    """`qk_norm_rope` of one new token of each request, its write into the cache, and attention over that.

    How a request's tokens are divided follows from B, the sizes of the model and the cache, its own length and the
    step's total: equal batches give equal bits, captured or not.

    Args:
        q: [B, H * D], rows may be strided; stays as it is.
        k: [B, K * D], likewise.
        v: [B, K * D], likewise.
        norm_rope: of these tokens.
        kv_cache: one layer, [pages, 2 (key, value), page_size, K, D], contiguous, in q's dtype. The place of a new
            token is its request's alone, but for padding rows, which may share page 0.
        pages: of these requests.
        workspace: made for at least B requests and H heads of such a cache.
        delta: of modules q, k and v, added before all that, with the bits of `lora_add`.

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
    assert pages.slice_tokens.shape == (1,)
    if delta is not None:
        assert delta.tables.output_sizes == (q.shape[1], k.shape[1], v.shape[1])
        assert delta.values.shape == (requests, sum(delta.tables.output_sizes)) and delta.values.is_contiguous()
    if use_triton(q):
        return _fused_decode_attention_triton(q, k, v, norm_rope, kv_cache, pages, workspace, delta)
    return fused_decode_attention_reference(q, k, v, norm_rope, kv_cache, pages, workspace, delta)


def fused_decode_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm_rope: HeadNormRope,
    kv_cache: Tensor,
    pages: PageTables,
    workspace: DecodeAttentionWorkspace,
    delta: LoraDelta | None = None,
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
        delta,
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
    delta: LoraDelta | None,
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
    _fused_decode_attention_kernel[kv_heads, requests, config.splits](
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
        pages.slice_tokens,
        workspace.sums,
        workspace.stats,
        workspace.counters,
        out,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        *delta_arguments(delta, q),
        GROUP=group,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        EPS=norm_rope.eps,
        NORM=norm_rope.q_weight is not None,
        HAS_DELTA=delta is not None,
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
