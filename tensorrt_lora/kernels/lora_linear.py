"""y = x W^T with every row's own LoRA, in one launch: the base projection and its LoRA branch for few tokens.

Called by `lora/layer.py` where the plan says so. The first programs are those of `lora_shrink`; the last of them to
finish a block of rank rows adds its slices up, scales and rounds them. The others are those of `streamed_linear`: each
streams its rows of W, and adds B h, ready by then, to its finished tile. Programs wait only for programs with lower
numbers, which start first, so none waits for one that cannot run. The result has the bits of `lora_shrink`, `linear`
and `lora_expand` one after the other: the same blocks, sums in the same order, rounded at the same places.
"""

import torch
import triton
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.linear import linear
from tensorrt_lora.kernels.linear_weight import LinearWeight
from tensorrt_lora.kernels.lora_batch import (
    BIAS_ROW,
    DECODE_TILE_SIZE,
    GAIN_ROW,
    MAX_MODULES,
    RANK_PAGE,
    LoraBatch,
    LoraTables,
    max_tiles,
)
from tensorrt_lora.kernels.lora_expand import lora_expand
from tensorrt_lora.kernels.lora_linear_kernel import _lora_linear_kernel
from tensorrt_lora.kernels.lora_shrink import lora_shrink, num_splits, shrink_config
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.streamed_linear import (
    check_config,
    scales_of,
)
from tensorrt_lora.kernels.streamed_linear_config import (
    MAX_STREAMED_TOKENS,
    StreamedLinearConfig,
    streamed_linear_config,
)

_EXPAND_RANK = 64  # rank rows of B in registers at once
_SHRINK_WARPS = 4
_MOST_EXPANDED_VALUES = 64 * 64  # of a tile: with more, its sums and its delta do not fit into registers


def can_fuse(tokens: int, weight: LinearWeight, tables: LoraTables, *, expand: bool = True) -> bool:
    """Whether one launch serves such a product: few tokens, not too many rank rows, no tile of outputs in two modules.

    Args:
        expand: whether it has the expand in it, as in `lora_linear`; not so in `linear_and_shrink`.
    """
    if weight.counters is None or tables.counters is None or not 0 < tokens <= MAX_STREAMED_TOKENS:
        return False
    config = _base_config(tokens, weight)
    if expand and config.block_m * config.block_n > _MOST_EXPANDED_VALUES:
        return False
    tiles = max_tiles(tokens, tables.rank.shape[1], DECODE_TILE_SIZE)
    if tiles * _rank_blocks(tables, tables.a_pool.dtype) >= tables.counters.numel():
        return False
    return config.num_warps == _SHRINK_WARPS and all(size % config.block_n == 0 for size in tables.output_sizes)


def lora_linear(
    x: Tensor, base_x: Tensor | QuantizedActivation, weight: LinearWeight, tables: LoraTables, batch: LoraBatch
) -> Tensor:
    """x W^T + bias as a new tensor [T, N] of x's dtype, and LoRA on top in the rows of adapters.

    Args:
        x: [T, K], the unquantised input, contiguous.
        base_x: what the weight multiplies: x, or x quantised.
        weight: as `can_fuse` wants it.
    """
    if use_triton(x):
        out, _ = lora_linear_triton(x, base_x, weight, tables, batch, _base_config(x.shape[0], weight))
        return out
    return lora_linear_reference(x, base_x, weight, tables, batch)


def linear_and_shrink(
    x: Tensor, base_x: Tensor | QuantizedActivation, weight: LinearWeight, tables: LoraTables, batch: LoraBatch
) -> tuple[Tensor, Tensor]:
    """x W^T + bias without LoRA, and h = scale * x A for the consumer of the first to expand; arguments as above.

    h is [modules, T, max_rank] in x's dtype. Rows of base tokens, and ranks beyond those of a token's adapter, are left
    unwritten.
    """
    if use_triton(x):
        config = _base_config(x.shape[0], weight)
        return lora_linear_triton(x, base_x, weight, tables, batch, config, expand=False)
    return linear_and_shrink_reference(x, base_x, weight, tables, batch)


def linear_and_shrink_reference(
    x: Tensor, base_x: Tensor | QuantizedActivation, weight: LinearWeight, tables: LoraTables, batch: LoraBatch
) -> tuple[Tensor, Tensor]:
    """The same as two ops."""
    slices = x.new_empty(
        (num_splits(x.shape[0], x.shape[1], x.device), tables.num_modules, x.shape[0], tables.max_rank)
    )
    slices = slices.to(torch.promote_types(x.dtype, torch.float32))
    lora_shrink(x, tables, batch, slices)
    h_sum = sum(slices[1:], start=slices[0])
    token_scale = tables.scale[:, batch.token_slots.clamp(min=0).long(), None]
    return linear(base_x, weight, x.dtype), (h_sum * token_scale).to(x.dtype)


def lora_linear_reference(
    x: Tensor, base_x: Tensor | QuantizedActivation, weight: LinearWeight, tables: LoraTables, batch: LoraBatch
) -> Tensor:
    """The same as three ops."""
    out = linear(base_x, weight, x.dtype)
    splits = num_splits(x.shape[0], x.shape[1], x.device)
    h = x.new_empty((splits, tables.num_modules, x.shape[0], tables.max_rank), dtype=torch.float32)
    lora_shrink(x, tables, batch, h)
    lora_expand(h, tables, batch, out, accumulate=True)
    return out


def _rank_blocks(tables: LoraTables, dtype: torch.dtype) -> int:
    """Blocks of rank rows that the shrink's programs share between them."""
    rank_rows = tables.num_modules * tables.max_rank
    return triton.cdiv(rank_rows, shrink_config(DECODE_TILE_SIZE, dtype, rank_rows).block_r)


def _base_config(tokens: int, weight: LinearWeight) -> StreamedLinearConfig:
    block_scales = weight.scale is not None and weight.scale.dim() == 2
    itemsize = weight.values.itemsize
    return streamed_linear_config(tokens, *weight.values.shape, itemsize=itemsize, block_scales=block_scales)


def lora_linear_triton(
    x: Tensor,
    base_x: Tensor | QuantizedActivation,
    weight: LinearWeight,
    tables: LoraTables,
    batch: LoraBatch,
    config: StreamedLinearConfig,
    *,
    expand: bool = True,
    lora_splits: int | None = None,
    programmatic: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Both ops as a Triton kernel: (output, h).

    Args:
        expand: whether the output has LoRA in it.
        lora_splits: slices of K of the shrink; None for those of `num_splits`.
        programmatic: replaces what `programmatic_launch` says.
    """
    tokens, in_features = x.shape
    out_features = weight.values.shape[0]
    values, x_scale = (base_x.values, base_x.scale) if isinstance(base_x, QuantizedActivation) else (base_x, None)
    assert x.is_contiguous() and values.is_contiguous() and weight.counters is not None and tables.counters is not None
    assert batch.tile_size == DECODE_TILE_SIZE and tokens <= config.block_m
    assert all(size % config.block_n == 0 for size in tables.output_sizes)
    if programmatic is None:
        programmatic = programmatic_launch(x)

    rank_rows = tables.num_modules * tables.max_rank
    shrink = shrink_config(batch.tile_size, x.dtype, rank_rows)
    rank_blocks = _rank_blocks(tables, x.dtype)
    lora_splits = lora_splits or num_splits(tokens, in_features, x.device)
    splits = check_config(config, tokens, weight)
    n_tiles = triton.cdiv(out_features, config.block_n)
    shrink_programs = rank_blocks * lora_splits * batch.max_tiles
    assert batch.max_tiles * rank_blocks < tables.counters.numel() < 1 << 15 and n_tiles * splits < 1 << 15

    out = x.new_empty((tokens, out_features))
    partials = x.new_empty((splits, tokens, out_features), dtype=torch.float32) if splits > 1 else out
    h_slices = x.new_empty((lora_splits, tables.num_modules, tokens, tables.max_rank), dtype=torch.float32)
    h = x.new_empty((tables.num_modules, tokens, tables.max_rank))
    sizes = [*tables.output_sizes, 0, 0][:MAX_MODULES]
    _lora_linear_kernel[(shrink_programs + n_tiles * splits,)](
        x,
        values,
        values if x_scale is None else x_scale,
        weight.values,
        values if weight.scale is None else weight.scale,
        out if weight.bias is None else weight.bias,
        out,
        partials,
        weight.counters,
        tables.a_pool,
        tables.b_pool,
        h_slices,
        h,
        tables.counters,
        tables.page_table,
        tables.rank,
        tables.scale,
        tables.extras,
        batch.token_slots,
        batch.sorted_tokens,
        batch.tile_slot,
        batch.tile_start,
        batch.tile_len,
        tokens,
        out_features,
        in_features,
        0 if x_scale is None else x_scale.stride(0),
        0 if x_scale is None else x_scale.stride(1),
        config.split_width(in_features),
        batch.max_tiles,
        tables.rank.shape[1],
        tables.a_pool.stride(0),
        tables.a_pool.stride(1),
        tables.b_pool.stride(0),
        tables.page_table.stride(0),
        triton.cdiv(triton.cdiv(in_features, lora_splits), shrink.block_k) * shrink.block_k,
        sizes[0],
        sizes[0] + sizes[1],
        SCALES=scales_of(weight),
        HAS_BIAS=weight.bias is not None,
        SPLITS=splits,
        EVEN_K=in_features % config.block_k == 0,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        PROGRAMMATIC=programmatic,
        MODULES=tables.num_modules,
        MAX_RANK=tables.max_rank,
        PAGE=RANK_PAGE,
        BIAS=BIAS_ROW,
        GAIN=GAIN_ROW,
        LORA_SPLITS=lora_splits,
        RANK_BLOCKS=rank_blocks,
        LORA_EVEN_K=in_features % shrink.block_k == 0,
        SHRINK_M=shrink.block_m,
        SHRINK_R=shrink.block_r,
        SHRINK_K=shrink.block_k,
        EXPAND=expand,
        EXPAND_R=min(triton.next_power_of_2(tables.max_rank), _EXPAND_RANK),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(programmatic),
    )
    return out, h
