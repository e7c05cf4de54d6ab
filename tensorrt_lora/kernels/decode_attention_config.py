"""The shape of `fused_decode_attention`'s launch.

Called by the op, by its workspace, and by the backend that asks whether a step may use it. Functions of static facts
only, so that captured graphs stay valid whatever lengths come, and equal batches give equal bits.
"""

from dataclasses import dataclass

import triton

MAX_FUSED_REQUESTS = 16
"""Of a step. Up to here launches and merges are what attention costs; beyond, a request has too few programs for a long
context, and FlashInfer, which balances lengths, is as good."""

BLOCK_HEADS = 16
"""Rows of a program's tile of query heads, the least of a tensor core: the heads that share a key head must fit."""

_BLOCK_TOKENS = 64
_WANTED_PROGRAMS = 256  # about two for each SM of an H200
_MIN_SPLITS, _MAX_SPLITS = 4, 16  # fewer starve a long context beside short ones; more make the merge long
_THREAD_VALUES = 8  # of each half of a head, as in `qk_norm_rope`: sums of squares have its order


@dataclass(frozen=True, slots=True)
class DecodeAttentionConfig:
    """Most programs that share a request's tokens, a power of two; tokens of a tile."""

    splits: int
    block_tokens: int
    num_warps: int
    num_stages: int


def decode_attention_config(requests: int, kv_heads: int, head_dim: int, max_kv_len: int) -> DecodeAttentionConfig:
    """The configuration for a step of `requests` requests of up to `max_kv_len` tokens."""
    wanted = min(max(_WANTED_PROGRAMS // (requests * kv_heads), _MIN_SPLITS), _MAX_SPLITS)
    wanted = min(wanted, triton.next_power_of_2(triton.cdiv(max_kv_len, _BLOCK_TOKENS)))
    half = triton.next_power_of_2(head_dim // 2)
    return DecodeAttentionConfig(
        splits=1 << (wanted.bit_length() - 1),
        block_tokens=_BLOCK_TOKENS,
        num_warps=max(1, BLOCK_HEADS * half // (32 * _THREAD_VALUES)),
        num_stages=3 if half <= 64 else 2,
    )


def serves_head_group(heads: int, kv_heads: int) -> bool:
    """Whether the query heads of a key head fit a program."""
    return heads // kv_heads <= BLOCK_HEADS
