"""The launch of `lora_silu_and_mul` for few tokens: h comes scaled, from the launch of the projection.

Called by `lora_silu_and_mul`, whose tests cover it. Tiles are those of decoding.
"""

import torch
import triton
from torch import Tensor

from tensorrt_lora.kernels.fp8_quantize import quantize_by_maxima
from tensorrt_lora.kernels.fp8_weight import BLOCK
from tensorrt_lora.kernels.lora_batch import (
    BIAS_ROW,
    DECODE_TILE_SIZE,
    GAIN_ROW,
    RANK_PAGE,
    LoraBatch,
    LoraTables,
)
from tensorrt_lora.kernels.lora_silu_and_mul_decode_kernel import _lora_silu_and_mul_kernel
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation

BLOCK_N = BLOCK  # a group of the quantisation; one token of Qwen3-32B keeps 200 programs busy
_MAX_BLOCK_R = 64  # rank rows of the two Bs in registers at once


def lora_silu_and_mul_decode(
    gate_up: Tensor,
    h: Tensor,
    tables: LoraTables,
    batch: LoraBatch,
    out: Tensor,
    quantization: ActivationQuantization | None,
    quantized: QuantizedActivation | None,
) -> None:
    """Fill `out` [T, N] and `quantized` for the h of `linear_and_shrink`; arguments as those of the op."""
    tokens, width = out.shape
    assert batch.tile_size == DECODE_TILE_SIZE
    parts = triton.cdiv(width, BLOCK_N)
    block_m = block_tokens(tokens)
    granularity = "" if quantization is None else quantization.granularity(width)
    maxima = out.new_empty((tokens, parts), dtype=torch.float32) if granularity == "token" else None
    # A tensor stands in for what the kernel does not read.
    target = QuantizedActivation(out, out) if quantized is None else quantized
    static_scale = None if quantization is None else quantization.static_scale
    programmatic = programmatic_launch(gate_up)
    _lora_silu_and_mul_kernel[(parts, batch.max_tiles + triton.cdiv(tokens, block_m))](
        gate_up,
        h,
        tables.b_pool,
        out,
        target.values,
        target.scale if maxima is None else maxima,
        target.scale if static_scale is None else static_scale,
        tables.page_table,
        tables.rank,
        tables.extras,
        batch.token_slots,
        batch.sorted_tokens,
        batch.tile_slot,
        batch.tile_start,
        batch.tile_len,
        tokens,
        batch.max_tiles,
        tables.rank.shape[1],
        gate_up.stride(0),
        tables.b_pool.stride(0),
        tables.page_table.stride(0),
        target.scale.stride(1),
        WIDTH=width,
        MAX_RANK=tables.max_rank,
        PAGE=RANK_PAGE,
        BIAS=BIAS_ROW,
        GAIN=GAIN_ROW,
        QUANTIZE=granularity,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_N,
        BLOCK_R=block_ranks(tables.max_rank),
        PROGRAMMATIC=programmatic,
        num_warps=num_warps(block_m),
        num_stages=1,
        **launch_options(programmatic),
    )
    if maxima is not None:
        quantize_by_maxima(out, maxima, target)


def block_tokens(tokens: int) -> int:
    """Of a program: a tile of the batch, which a few tokens do not fill."""
    return min(triton.next_power_of_2(tokens), DECODE_TILE_SIZE)


def num_warps(block_m: int) -> int:
    """Eight values a thread, or fewer."""
    return 8 if block_m == DECODE_TILE_SIZE else 4


def block_ranks(max_rank: int) -> int:
    """Rank rows of a program's products."""
    return min(triton.next_power_of_2(max_rank), _MAX_BLOCK_R)
