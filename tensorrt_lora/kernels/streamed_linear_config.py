"""The shape of `streamed_linear`'s launch, and the cases that are left to cuBLAS.

Called by `linear`, `lora_linear` and the kernel benchmark. Functions of static facts only, so that captured graphs
stay valid.
"""

from dataclasses import dataclass

import triton

MIN_BLOCK_N = 16
"""Of every configuration: sizes the counters of split sums."""

MAX_STREAMED_TOKENS = 64  # beyond, cuBLAS's tiles are as good
_WANTED_PROGRAMS = 264  # two for each SM of an H200
_MIN_SPLIT_BLOCKS = 4  # K blocks of a split: fewer do not fill the pipeline


@dataclass(frozen=True, slots=True)
class StreamedLinearConfig:
    """Tokens, output rows and K columns of a program's tile; programs that share a tile's K between them."""

    block_m: int
    block_n: int
    block_k: int
    splits: int
    num_warps: int
    num_stages: int

    def split_width(self, in_features: int) -> int:
        """Columns of K that a program reads: whole blocks."""
        return triton.cdiv(triton.cdiv(in_features, self.splits), self.block_k) * self.block_k


# By (out_features, in_features, itemsize): rows, K columns, splits and stages for up to 16 tokens, and for up to 64.
# The fastest of `tensorrt-lora bench kernels` on an H200, where the rule below was not.
_TUNED: dict[tuple[int, int, int], tuple[tuple[int, int, int, int], tuple[int, int, int, int]]] = {
    # Qwen3-32B, float8: qkv, o, gate and up, down
    (10240, 5120, 1): ((64, 128, 1, 6), (64, 128, 1, 6)),
    (5120, 8192, 1): ((64, 256, 3, 4), (64, 128, 2, 6)),
    (51200, 5120, 1): ((128, 256, 1, 3), (128, 128, 1, 4)),
    (5120, 25600, 1): ((64, 128, 4, 4), (64, 256, 3, 3)),
    # Qwen3-8B, bfloat16
    (6144, 4096, 2): ((64, 128, 4, 3), (64, 128, 2, 3)),
    (4096, 4096, 2): ((64, 128, 2, 4), (64, 64, 2, 6)),
    (24576, 4096, 2): ((64, 128, 1, 3), (64, 64, 1, 4)),
    (4096, 12288, 2): ((64, 128, 4, 4), (64, 128, 4, 3)),
}


def streamed_linear_config(
    tokens: int, out_features: int, in_features: int, *, itemsize: int, block_scales: bool
) -> StreamedLinearConfig:
    """The configuration for x [tokens, in_features] times a weight [out_features, in_features].

    Args:
        itemsize: bytes of a value, 1 or 2.
        block_scales: whether the weight has a scale for each block of 128 x 128.
    """
    block_m = next((size for size in (16, 32, 64) if tokens <= size), 128)
    if block_m == 128:
        return StreamedLinearConfig(block_m=128, block_n=128, block_k=128, splits=1, num_warps=8, num_stages=3)
    tuned = _TUNED.get((out_features, in_features, itemsize))
    if tuned is not None and not block_scales:
        block_n, block_k, splits, num_stages = tuned[block_m > 16]
        return StreamedLinearConfig(block_m, block_n, block_k, splits, num_warps=4, num_stages=num_stages)
    block_k, num_stages = (128, 6) if block_scales or block_m > 16 else (256, 4)
    if itemsize == 2:
        block_k, num_stages = (64, 6) if block_m > 16 else (128, 4)
    tiles = triton.cdiv(out_features, 64)
    splits = min(_WANTED_PROGRAMS // tiles, triton.cdiv(in_features, block_k) // _MIN_SPLIT_BLOCKS)
    return StreamedLinearConfig(block_m, 64, block_k, max(1, splits), num_warps=4, num_stages=num_stages)


def use_cublas(tokens: int, out_features: int, in_features: int, *, itemsize: int) -> bool:
    """Whether cuBLAS computes a product: only of many tokens, and of float8 with rows of whole 16 bytes."""
    return tokens > MAX_STREAMED_TOKENS and (itemsize > 1 or (out_features % 16 == 0 and in_features % 16 == 0))
