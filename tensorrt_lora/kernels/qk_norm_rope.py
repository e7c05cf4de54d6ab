"""From projected queries and keys to what attention reads: head norms, rotation, the write into the cache.

Called by `Attention`. The norm over each head is optional (Qwen3 has it), and so is the write into the paged
cache. Pairs rotated are (i, i + D/2): "NeoX style", the layout of Hugging Face checkpoints. Source: Su et
al., "RoFormer" (2021). Shapes: T tokens, H query heads, K key/value heads, D head size.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.paged_attention import write_kv_cache
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.rms_norm import rms_norm_reference


@dataclass(slots=True)
class KvCacheWrite:
    """Where this step's keys and values also go, as in `write_kv_cache`."""

    v: Tensor
    """[T, K * D], rows may be strided."""
    kv_cache: Tensor
    """One layer: [pages, 2 (key, value), page_size, K, D], contiguous."""
    cache_slots: Tensor
    """[T] int64: page * page_size + offset. Slots of page 0 may repeat, any other slot may not."""


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    position_ids: Tensor,
    cos_sin_cache: Tensor,
    head_dim: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    kv_write: KvCacheWrite | None = None,
) -> None:
    """Normalise every head of `q` and `k`, rotate it by its token's position, both in place.

    The norm is rounded as in `rms_norm_reference`; the rotation is computed in float32 and rounded once.

    Positions, cache slots and the table are read while the kernel in front may still run (`programmatic_launch`): they
    are written before a step, not in it.

    Args:
        q: [T, H * D], rows may be strided.
        k: [T, K * D], likewise, the dtype of q.
        position_ids: [T] int64 or int32.
        cos_sin_cache: [positions, D] float32, contiguous: D/2 cosines, then D/2 sines.
        head_dim: D, even.
        q_weight: [D] in q's dtype; None, with `k_weight`, for no norm.
        k_weight: likewise, of the keys.
        eps: of the norm.
        kv_write: store the finished keys, and the values, in the cache too.
    """
    assert q.shape[1] % head_dim == 0 and k.shape[1] % head_dim == 0 and head_dim % 2 == 0
    assert q.stride(-1) == 1 and k.stride(-1) == 1 and q.dtype == k.dtype
    assert position_ids.shape == q.shape[:1] and position_ids.is_contiguous()
    assert (q_weight is None) == (k_weight is None)
    assert cos_sin_cache.shape[1] == head_dim and cos_sin_cache.is_contiguous()
    if kv_write is not None:
        assert kv_write.v.shape == k.shape and kv_write.v.stride(-1) == 1
        assert kv_write.cache_slots.shape == q.shape[:1] and kv_write.cache_slots.is_contiguous()
        assert kv_write.kv_cache.is_contiguous() and kv_write.kv_cache.dtype == k.dtype == kv_write.v.dtype
    if use_triton(q):
        _qk_norm_rope_triton(q, k, position_ids, cos_sin_cache, head_dim, q_weight, k_weight, eps, kv_write)
    else:
        qk_norm_rope_reference(q, k, position_ids, cos_sin_cache, head_dim, q_weight, k_weight, eps, kv_write)


def qk_norm_rope_reference(
    q: Tensor,
    k: Tensor,
    position_ids: Tensor,
    cos_sin_cache: Tensor,
    head_dim: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    kv_write: KvCacheWrite | None = None,
) -> None:
    """The same in torch."""
    cos, sin = cos_sin_cache.index_select(0, position_ids).unsqueeze(1).chunk(2, dim=-1)
    for x, weight in ((q, q_weight), (k, k_weight)):
        heads = x.unflatten(-1, (-1, head_dim))
        normed = heads if weight is None else rms_norm_reference(heads, weight, eps)
        first, second = normed.float().chunk(2, dim=-1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
    if kv_write is not None:
        key, value = (x.unflatten(-1, (-1, head_dim)) for x in (k, kv_write.v))
        write_kv_cache(key, value, kv_write.kv_cache, kv_write.cache_slots)


BLOCK_HEADS = 8  # of a program
_THREAD_VALUES = 8  # of each half of a head: 16 bytes in bfloat16


def num_warps(head_dim: int) -> int:
    """Warps of a program: threads for its heads, each with `_THREAD_VALUES` of both halves."""
    return max(1, BLOCK_HEADS * triton.next_power_of_2(head_dim // 2) // (32 * _THREAD_VALUES))


def _qk_norm_rope_triton(
    q: Tensor,
    k: Tensor,
    position_ids: Tensor,
    cos_sin_cache: Tensor,
    head_dim: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    kv_write: KvCacheWrite | None,
) -> None:
    tokens = q.shape[0]
    if tokens == 0:
        return
    heads, kv_heads = q.shape[1] // head_dim, k.shape[1] // head_dim
    programmatic = programmatic_launch(q)
    # A tensor stands in for what the kernel does not read.
    write = KvCacheWrite(k, k, position_ids) if kv_write is None else kv_write
    # One shape of program for every T, so that a token's bits do not depend on how many come with it.
    grid = (tokens, triton.cdiv(heads, BLOCK_HEADS) + triton.cdiv(kv_heads, BLOCK_HEADS))
    _qk_norm_rope_kernel[grid](
        q,
        k,
        write.v,
        q if q_weight is None else q_weight,
        k if k_weight is None else k_weight,
        position_ids,
        cos_sin_cache,
        write.kv_cache,
        write.cache_slots,
        q.stride(0),
        k.stride(0),
        write.v.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=1 if kv_write is None else write.kv_cache.shape[2],
        EPS=eps,
        NORM=q_weight is not None,
        WRITE_KV=kv_write is not None,
        BLOCK_HEADS=BLOCK_HEADS,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        PROGRAMMATIC=programmatic,
        num_warps=num_warps(head_dim),
        **launch_options(programmatic),
    )


# Of these one value is read by a program, so that their alignment does not matter.
@triton.jit(do_not_specialize_on_alignment=["position_ids", "cache_slots"])
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
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    EPS: tl.constexpr,
    NORM: tl.constexpr,
    WRITE_KV: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: BLOCK_HEADS query heads, or key heads and their values, of one token."""
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    # As wide as the heads, so that each head reads weights and angles for itself: in one layout of registers
    # the threads have nothing to exchange but the sums of squares.
    half = tl.broadcast_to(tl.arange(0, BLOCK_HALF)[None, :], (BLOCK_HEADS, BLOCK_HALF))
    in_half = half < HEAD_DIM // 2
    query_groups = tl.cdiv(HEADS, BLOCK_HEADS)
    angles = cos_sin_cache + tl.load(position_ids + token).to(tl.int64) * HEAD_DIM
    if group < query_groups:
        head = group * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
        live = (head < HEADS) & in_half
        heads = q + token * q_stride + head * HEAD_DIM + half
        parameters = load_halves(q_weight, angles, half, in_half, HEAD_DIM, NORM)
        if PROGRAMMATIC:
            tl.extra.cuda.gdc_wait()
        first = tl.load(heads, mask=live, other=0.0)
        second = tl.load(heads + HEAD_DIM // 2, mask=live, other=0.0)
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
        if PROGRAMMATIC:
            tl.extra.cuda.gdc_wait()
        if WRITE_KV:
            values = v + token * v_stride + column
            first_value = tl.load(values, mask=live)
            second_value = tl.load(values + HEAD_DIM // 2, mask=live)
        heads = k + token * k_stride + column
        first = tl.load(heads, mask=live, other=0.0)
        second = tl.load(heads + HEAD_DIM // 2, mask=live, other=0.0)
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
