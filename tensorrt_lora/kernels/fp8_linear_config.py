"""The shape of `fp8_linear`'s Triton launch, and the cases that are left to cuBLAS.

Called by `fp8_linear` and the kernel benchmark. A function of static facts only, so that captured graphs stay valid.
"""

from dataclasses import dataclass

import triton

MIN_BLOCK_N = 16
"""Of every configuration: sizes the counters of split sums."""

_MAX_TRITON_TOKENS = 16  # beyond, cuBLAS's tiles are as good
_WANTED_PROGRAMS = 264  # two for each SM of an H200
_MIN_SPLIT_BLOCKS = 4  # K blocks of a split: fewer do not fill the pipeline


@dataclass(frozen=True, slots=True)
class Fp8LinearConfig:
    """Tokens, output rows and K columns of a program's tile; programs that share a tile's K between them."""

    block_m: int
    block_n: int
    block_k: int
    splits: int
    num_warps: int
    num_stages: int


def fp8_linear_config(tokens: int, out_features: int, in_features: int, *, block_scales: bool) -> Fp8LinearConfig:
    """The configuration for x [tokens, in_features] times a weight [out_features, in_features]."""
    block_m = next((size for size in (16, 32, 64) if tokens <= size), 128)
    if block_m == 128:
        return Fp8LinearConfig(block_m=128, block_n=128, block_k=128, splits=1, num_warps=8, num_stages=3)
    block_k, num_stages = (128, 6) if block_scales or block_m == 64 else (256, 4)
    tiles = triton.cdiv(out_features, 64)
    splits = min(_WANTED_PROGRAMS // tiles, triton.cdiv(in_features, block_k) // _MIN_SPLIT_BLOCKS)
    return Fp8LinearConfig(block_m, 64, block_k, max(1, splits), num_warps=4, num_stages=num_stages)


def use_cublas(tokens: int, out_features: int, in_features: int) -> bool:
    """Whether cuBLAS computes these products with scales of rows: only for many tokens, and rows of whole 16 bytes."""
    return tokens > _MAX_TRITON_TOKENS and out_features % 16 == 0 and in_features % 16 == 0
