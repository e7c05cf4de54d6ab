"""The launch of `lora_silu_and_mul` for many tokens: h comes in slices, as `lora_shrink` leaves it.

Called by `lora_silu_and_mul`, whose tests cover it. Bound by memory: as much as possible is in flight.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from tensorrt_lora.kernels.fp8_quantize import quantize_by_maxima
from tensorrt_lora.kernels.fp8_weight import BLOCK
from tensorrt_lora.kernels.lora_batch import (
    BIAS_ROW,
    GAIN_ROW,
    PREFILL_TILE_SIZE,
    RANK_PAGE,
    LoraBatch,
    LoraTables,
)
from tensorrt_lora.kernels.lora_silu_and_mul_prefill_kernel import _lora_silu_and_mul_prefill_kernel
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation

BLOCK_N = BLOCK // 2  # of gate and of up at once, with products in registers: two make a group of the quantisation
COUNTED_TILES = 256  # at once, by a program of base rows
_MOST_COLUMNS = 512  # of a program: they share its h
_WANTED_PROGRAMS = 2112  # four rounds of four for each SM of an H200


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """Launch shape of the kernel: tokens and rank rows of a program's tiles, warps, most registers of a thread."""

    block_m: int
    block_r: int
    num_warps: int
    max_registers: int | None = None


def prefill_config(
    tile_size: int, dtype: torch.dtype, max_rank: int, width: int, *, splits: int, granularity: str
) -> PrefillConfig:
    """The configuration for a batch in tiles of `tile_size`, tables of `max_rank` and h in so many slices.

    The rank is one tile if that is small enough. As in `lora_expand`, the loop over longer ones is not pipelined; it
    loads h again for every block of columns. float32 has no tensor cores to feed.
    """
    if dtype.itemsize > 2:
        return PrefillConfig(tile_size, 16, num_warps=8 if tile_size == PREFILL_TILE_SIZE else 4)
    block_r = triton.next_power_of_2(max_rank) if max_rank <= 64 else 32
    if tile_size < PREFILL_TILE_SIZE:
        return PrefillConfig(tile_size, block_r, num_warps=4, max_registers=128)
    # As few as spill nothing, where that makes room for one program more on an SM, and what it has in flight.
    fits = granularity != "group" or (max_rank <= 32 and width % BLOCK == 0)
    return PrefillConfig(tile_size, block_r, num_warps=4, max_registers=168 if splits == 1 and fits else None)


def block_columns(granularity: str) -> int:
    """Columns that a program computes before it stores a scale."""
    return 2 * BLOCK_N if granularity == "group" else BLOCK_N


def lora_silu_and_mul_prefill(
    gate_up: Tensor,
    h: Tensor,
    tables: LoraTables,
    batch: LoraBatch,
    out: Tensor,
    quantization: ActivationQuantization | None,
    quantized: QuantizedActivation | None,
) -> None:
    """Fill `out` [T, N] and `quantized` for the h of `lora_shrink`; arguments as those of the op."""
    tokens, width = out.shape
    granularity = "" if quantization is None else quantization.granularity(width)
    config = prefill_config(
        batch.tile_size, out.dtype, tables.max_rank, width, splits=h.shape[0], granularity=granularity
    )
    # Base rows are one slot more, and so one tile more at most.
    tiles = batch.max_tiles + 1
    columns = block_columns(granularity)
    parts = triton.cdiv(width, columns)
    blocks = max(1, min(_MOST_COLUMNS // columns, tiles * parts // _WANTED_PROGRAMS))
    groups = triton.cdiv(parts, blocks)
    maxima = out.new_empty((tokens, groups), dtype=torch.float32) if granularity == "token" else None
    # A tensor stands in for what the kernel does not read.
    target = QuantizedActivation(out, out) if quantized is None else quantized
    static_scale = None if quantization is None else quantization.static_scale
    programmatic = programmatic_launch(gate_up)
    _lora_silu_and_mul_prefill_kernel[groups, tiles](
        gate_up,
        h,
        tables.b_pool,
        out,
        target.values,
        target.scale if maxima is None else maxima,
        target.scale if static_scale is None else static_scale,
        tables.page_table,
        tables.rank,
        tables.scale,
        tables.extras,
        batch.sorted_tokens,
        batch.tile_slot,
        batch.tile_start,
        batch.tile_len,
        tokens,
        batch.max_tiles,
        blocks,
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
        SPLITS=h.shape[0],
        QUANTIZE=granularity,
        BLOCK_M=config.block_m,
        BLOCK_N=BLOCK_N,
        BLOCK_R=config.block_r,
        COUNTED=COUNTED_TILES,
        PROGRAMMATIC=programmatic,
        num_warps=config.num_warps,
        num_stages=1,
        maxnreg=config.max_registers,
        **launch_options(programmatic),
    )
    if maxima is not None:
        quantize_by_maxima(out, maxima, target)
