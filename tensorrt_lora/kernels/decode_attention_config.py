"""The shape of `fused_decode_attention`'s launch.

Called by the op, by its workspace, and by the backend that asks whether a step may use it. The launch is a function of
static facts only, so that captured graphs stay valid whatever lengths come; `balanced_slice` is a step's own.
"""

from dataclasses import dataclass

import triton

MAX_FUSED_REQUESTS = 64
"""Of a step. A layer of 64 requests of 384 tokens takes 37 us here; rotation, attention and merge as kernels of their
own take 41. Of 128 requests they take 62 for attention and merge, and this kernel 70."""

BLOCK_HEADS = 16
"""Rows of a program's tile of query heads, the least of a tensor core: the heads that share a key head must fit."""

_BLOCK_TOKENS = 64
# About two for each SM of an H200. A third would fit, and is slower: 16 requests of 384 tokens took 13.1 us in two
# slices each, 18.2 in three.
_WANTED_PROGRAMS = 256
_THREAD_VALUES = 8  # of each half of a head, as in `qk_norm_rope`: sums of squares have its order

# (Up to so many pairs of request and key head, most slices of a request.) A long context among short ones wants many:
# 30,000 tokens in two slices take 260 us. But programs for slices that the others lack cost 1.4 us for each 1,000.
_SPLITS = ((32, 16), (128, 8), (256, 4))
_LEAST_SPLITS = 2


@dataclass(frozen=True, slots=True)
class DecodeAttentionConfig:
    """Most programs that share a request's tokens, a power of two; tokens of a tile."""

    splits: int
    block_tokens: int
    num_warps: int
    num_stages: int


def decode_attention_config(requests: int, kv_heads: int, head_dim: int, max_kv_len: int) -> DecodeAttentionConfig:
    """The configuration for a step of `requests` requests of up to `max_kv_len` tokens."""
    pairs = requests * kv_heads
    splits = next((splits for most, splits in _SPLITS if pairs <= most), _LEAST_SPLITS)
    half = triton.next_power_of_2(head_dim // 2)
    return DecodeAttentionConfig(
        splits=min(splits, triton.next_power_of_2(triton.cdiv(max_kv_len, _BLOCK_TOKENS))),
        block_tokens=_BLOCK_TOKENS,
        num_warps=max(1, BLOCK_HEADS * half // (32 * _THREAD_VALUES)),
        num_stages=3 if half <= 64 else 2,
    )


def balanced_slice(total_tokens: int, kv_heads: int) -> int:
    """What one program should read of a step whose requests have `total_tokens` together, so that all end together."""
    return max(_BLOCK_TOKENS, total_tokens * kv_heads // _WANTED_PROGRAMS)


def serves_head_group(heads: int, kv_heads: int) -> bool:
    """Whether the query heads of a key head fit a program."""
    return heads // kv_heads <= BLOCK_HEADS
