"""From projected queries and keys to what attention reads: head norms, rotation, the write into the cache.

Called by `Attention`. The norm over each head is optional (Qwen3 has it), and so is the write into the paged
cache, and so is a LoRA delta that the projection left to be added. Pairs rotated are (i, i + D/2): "NeoX style", the
layout of Hugging Face checkpoints. Source: Su et al., "RoFormer" (2021). Shapes: T tokens, H query heads, K key/value
heads, D head size.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.lora_delta import LoraDelta, delta_arguments
from tensorrt_lora.kernels.paged_attention import write_kv_cache
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.qk_norm_rope_kernel import _qk_norm_rope_kernel
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
    delta: LoraDelta | None = None,
) -> None:
    """Normalise every head of `q` and `k`, rotate it by its token's position, both in place.

    The norm is rounded as in `rms_norm_reference`; the rotation is computed in float32 and rounded once.

    Positions, cache slots, the table and which adapter is whose are read while the kernel in front may still run
    (`programmatic_launch`): they are written before a step, not in it.

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
        delta: of modules q, k and v, added before all that, with the bits of `lora_add`. It needs `kv_write`: the
            cache gets the values with their delta, while `v` stays as it is.
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
    if delta is not None:
        assert kv_write is not None and delta.tables.output_sizes == (q.shape[1], k.shape[1], k.shape[1])
        assert delta.values.shape == (q.shape[0], sum(delta.tables.output_sizes)) and delta.values.is_contiguous()
    if use_triton(q):
        _qk_norm_rope_triton(q, k, position_ids, cos_sin_cache, head_dim, q_weight, k_weight, eps, kv_write, delta)
    else:
        qk_norm_rope_reference(q, k, position_ids, cos_sin_cache, head_dim, q_weight, k_weight, eps, kv_write, delta)


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
    delta: LoraDelta | None = None,
) -> None:
    """The same in torch."""
    if delta is not None:
        assert kv_write is not None
        finished = delta.added_to(torch.cat((q, k, kv_write.v), dim=-1)).split(delta.tables.output_sizes, dim=-1)
        q.copy_(finished[0])
        k.copy_(finished[1])
        kv_write = KvCacheWrite(finished[2], kv_write.kv_cache, kv_write.cache_slots)
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
    delta: LoraDelta | None,
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
        *delta_arguments(delta, q),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=1 if kv_write is None else write.kv_cache.shape[2],
        EPS=eps,
        NORM=q_weight is not None,
        WRITE_KV=kv_write is not None,
        HAS_DELTA=delta is not None,
        BLOCK_HEADS=BLOCK_HEADS,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        PROGRAMMATIC=programmatic,
        num_warps=num_warps(head_dim),
        **launch_options(programmatic),
    )
