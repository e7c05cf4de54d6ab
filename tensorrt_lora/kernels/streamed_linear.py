"""y = x W^T for few tokens, bound by the bytes of W: the kernel behind `linear`.

The weight is the left operand of each product: its rows fill the tensor cores where tokens are few. Programs that share
a tile's K add up in a fixed order. Shapes: T tokens, K inputs, N outputs. Float8 products of a block are exact in
float32; tensor cores sum them to about 14 bits, which is finer than the output.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.fp8_weight import BLOCK
from tensorrt_lora.kernels.linear_weight import LinearWeight
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.streamed_linear_config import MIN_BLOCK_N, StreamedLinearConfig

NO_SCALES = 0
ROW_SCALES = 1
BLOCK_SCALES = 2


def streamed_linear_triton(
    x: Tensor | QuantizedActivation,
    weight: LinearWeight,
    out_dtype: torch.dtype,
    config: StreamedLinearConfig,
    *,
    programmatic: bool | None = None,
) -> Tensor:
    """`linear` as a Triton kernel; `programmatic` replaces what `programmatic_launch` says."""
    values, x_scale = (x.values, x.scale) if isinstance(x, QuantizedActivation) else (x, None)
    assert values.is_contiguous() and weight.counters is not None
    tokens, in_features = values.shape
    out_features = weight.values.shape[0]
    out = weight.values.new_empty((tokens, out_features), dtype=out_dtype)
    if tokens == 0:
        return out
    if programmatic is None:
        programmatic = programmatic_launch(values)
    splits = check_config(config, tokens, weight)
    partials = values.new_empty((splits, tokens, out_features), dtype=torch.float32) if splits > 1 else out
    n_tiles, m_tiles = triton.cdiv(out_features, config.block_n), triton.cdiv(tokens, config.block_m)
    _streamed_linear_kernel[n_tiles * splits, m_tiles](
        values,
        values if x_scale is None else x_scale,
        weight.values,
        values if weight.scale is None else weight.scale,
        out if weight.bias is None else weight.bias,
        out,
        partials,
        weight.counters,
        tokens,
        out_features,
        in_features,
        0 if x_scale is None else x_scale.stride(0),
        0 if x_scale is None else x_scale.stride(1),
        config.split_width(in_features),
        SCALES=scales_of(weight),
        HAS_BIAS=weight.bias is not None,
        SPLITS=splits,
        EVEN_K=in_features % config.block_k == 0,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        PROGRAMMATIC=programmatic,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(programmatic),
    )
    return out


def check_config(config: StreamedLinearConfig, tokens: int, weight: LinearWeight) -> int:
    """The number of splits that `config` makes of this weight, after checks of the kernel's rules."""
    in_features = weight.values.shape[1]
    splits = triton.cdiv(in_features, config.split_width(in_features))
    assert splits == 1 or tokens <= config.block_m, "split sums are counted for one row of tiles"
    assert config.block_n >= MIN_BLOCK_N
    if scales_of(weight) == BLOCK_SCALES:
        assert config.block_k == BLOCK and BLOCK % config.block_n == 0
    return splits


def scales_of(weight: LinearWeight) -> int:
    """The kernel's SCALES for a weight."""
    if weight.scale is None:
        return NO_SCALES
    return BLOCK_SCALES if weight.scale.dim() == 2 else ROW_SCALES


NOT_SPECIALIZED = [
    "num_tokens",
    "x_scale_token_stride",
    "x_scale_group_stride",
]


@triton.jit(do_not_specialize=NOT_SPECIALIZED, do_not_specialize_on_alignment=["x_scale", "bias"])
def _streamed_linear_kernel(
    x,
    x_scale,
    weight,
    weight_scale,
    bias,
    out,
    partials,
    counters,
    num_tokens,
    out_features,
    in_features,
    x_scale_token_stride,
    x_scale_group_stride,
    split_width,
    SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: BLOCK_N outputs of BLOCK_M tokens over one slice of K. The last slice to finish adds all up."""
    n_tiles = tl.cdiv(out_features, BLOCK_N)
    n_tile = tl.program_id(0) % n_tiles
    split = tl.program_id(0) // n_tiles
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    first_k = split * split_width
    last_k = tl.minimum(first_k + split_width, in_features)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row_scale, token_scale = load_scales(
        x_scale, weight_scale, n, m, num_tokens, out_features, x_scale_token_stride, SCALES, BLOCK_M, BLOCK_N
    )
    acc = stream_sum(
        x,
        x_scale,
        weight,
        weight_scale,
        n,
        m,
        n_tile,
        first_k,
        last_k,
        num_tokens,
        out_features,
        in_features,
        x_scale_token_stride,
        x_scale_group_stride,
        SCALES,
        EVEN_K,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )
    if SPLITS > 1:
        if not is_last_split(acc, partials, counters, n, m, n_tile, split, num_tokens, out_features, SPLITS):
            return
        acc = sum_of_splits(partials, n, m, num_tokens, out_features, SPLITS, BLOCK_M, BLOCK_N)
    y = acc * row_scale[:, None] * token_scale[None, :]
    if HAS_BIAS:
        y += tl.load(bias + n, mask=n < out_features, other=0.0).to(tl.float32)[:, None]
    live = (n < out_features)[:, None] & (m < num_tokens)[None, :]
    tl.store(out + m.to(tl.int64)[None, :] * out_features + n[:, None], y.to(out.dtype.element_ty), mask=live)


@triton.jit
def stream_sum(
    x,
    x_scale,
    weight,
    weight_scale,
    n,
    m,
    n_tile,
    first_k,
    last_k,
    num_tokens,
    out_features,
    in_features,
    x_scale_token_stride,
    x_scale_group_stride,
    SCALES: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """[BLOCK_N, BLOCK_M] float32: rows `n` of the weight times rows `m` of x over one slice of K, blocks scaled."""
    live_m = m < num_tokens
    # Rows beyond the last are computed from it and never stored.
    weight_rows = weight + tl.minimum(n, out_features - 1).to(tl.int64) * in_features
    x_rows = x + m.to(tl.int64) * in_features
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for k0 in range(first_k, last_k, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        if EVEN_K:
            weight_tile = tl.load(weight_rows[:, None] + k[None, :], eviction_policy="evict_first")
            x_tile = tl.load(x_rows[None, :] + k[:, None], mask=live_m[None, :], other=0.0)
        else:
            in_k = k < in_features
            weight_tile = tl.load(weight_rows[:, None] + k[None, :], mask=in_k[None, :], other=0.0)
            x_tile = tl.load(x_rows[None, :] + k[:, None], mask=live_m[None, :] & in_k[:, None], other=0.0)
        if SCALES == 2:
            group = k0 // 128
            token_scale = tl.load(
                x_scale + m * x_scale_token_stride + group * x_scale_group_stride, mask=live_m, other=0.0
            )
            block = n_tile * BLOCK_N // 128 * tl.cdiv(in_features, 128) + group
            acc += tl.dot(weight_tile, x_tile) * (token_scale * tl.load(weight_scale + block))[None, :]
        elif SCALES == 1:
            # Tensor cores keep about 14 bits of a float8 sum: added up in registers every 128 columns, the error does
            # not grow with K. Left alone it passed 6e-3 at K = 8192.
            acc = tl.dot(weight_tile, x_tile, acc, max_num_imprecise_acc=128)
        else:
            acc = tl.dot(weight_tile, x_tile, acc, input_precision="ieee")
    return acc


@triton.jit
def is_last_split(acc, partials, counters, n, m, n_tile, split, num_tokens, out_features, SPLITS: tl.constexpr):
    """Leave a slice's sum in `partials`, and say whether all slices of the tile are there."""
    live = (n < out_features)[:, None] & (m < num_tokens)[None, :]
    tile = m.to(tl.int64)[None, :] * out_features + n[:, None]
    plane = num_tokens.to(tl.int64) * out_features
    tl.store(partials + split * plane + tile, acc, mask=live)
    tl.debug_barrier()  # all of the program's sums are written before it counts itself
    last = tl.atomic_add(counters + n_tile, 1, sem="acq_rel") == SPLITS - 1
    if last:
        tl.store(counters + n_tile, 0)
    return last


@triton.jit
def sum_of_splits(
    partials,
    n,
    m,
    num_tokens,
    out_features,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """[BLOCK_N, BLOCK_M]: the slices' sums of a tile, in order."""
    live = (n < out_features)[:, None] & (m < num_tokens)[None, :]
    tile = m.to(tl.int64)[None, :] * out_features + n[:, None]
    plane = num_tokens.to(tl.int64) * out_features
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    # Past the first-level cache, which knows nothing of what other SMs wrote. All at once, if registers suffice.
    if BLOCK_N * BLOCK_M * SPLITS <= 64 * 64 * 4:
        for split in tl.static_range(SPLITS):
            acc += tl.load(partials + split * plane + tile, mask=live, other=0.0, cache_modifier=".cg")
    else:
        for split in tl.range(SPLITS, num_stages=1):
            acc += tl.load(partials + split * plane + tile, mask=live, other=0.0, cache_modifier=".cg")
    return acc


@triton.jit
def load_scales(
    x_scale,
    weight_scale,
    n,
    m,
    num_tokens,
    out_features,
    x_scale_token_stride,
    SCALES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """What a finished sum's rows [BLOCK_N] and tokens [BLOCK_M] are multiplied by; ones where there is nothing.

    Loaded ahead of the stream, so that its end waits for as little as possible.
    """
    row_scale = tl.full((BLOCK_N,), 1.0, dtype=tl.float32)
    token_scale = tl.full((BLOCK_M,), 1.0, dtype=tl.float32)
    if SCALES == 1:
        row_scale = tl.load(weight_scale + n, mask=n < out_features, other=0.0)
        token_scale = tl.load(x_scale + m * x_scale_token_stride, mask=m < num_tokens, other=0.0)
    return row_scale, token_scale
