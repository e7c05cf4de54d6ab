"""y = x W^T of float8 activations and float8 weights, scaled in float32: the base projection of a quantised model.

Called by `lora/fp8_base_projection.py`. Shapes: T tokens, K inputs, N outputs. Scales are those of `fp8_weight` and
`fp8_quantize`: one per weight row and one per token, or one per block of 128 x 128 and one per 128 inputs of a token.
The products of a block are exact in float32; tensor cores sum them to about 14 bits, which is finer than the output.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_linear_config import MIN_BLOCK_N, Fp8LinearConfig, fp8_linear_config, use_cublas
from tensorrt_lora.kernels.fp8_quantize import QuantizedActivation
from tensorrt_lora.kernels.fp8_weight import BLOCK, dequantize_weight
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch


def tile_counters(out_features: int, device: torch.device) -> Tensor:
    """What `fp8_linear` counts finished tiles in: zeros, and zeros again after each call. One for each weight."""
    return torch.zeros(triton.cdiv(out_features, MIN_BLOCK_N), dtype=torch.int32, device=device)


def fp8_linear(
    x: QuantizedActivation,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    counters: Tensor,
) -> Tensor:
    """x W^T + bias as a new tensor [T, N] of `out_dtype`. Equal calls give equal bits: sums have a fixed order.

    Args:
        x: per token (or static), or per group where the weight has a scale per block.
        weight: [N, K] float8, contiguous.
        weight_scale: [N], or [ceil(N / 128), ceil(K / 128)]; float32, contiguous.
        bias: [N] of `out_dtype`.
        counters: this weight's `tile_counters`.
    """
    assert x.values.shape[1] == weight.shape[1] and x.values.is_contiguous() and weight.is_contiguous()
    assert weight_scale.is_contiguous() and weight_scale.dim() in (1, 2)
    if not use_triton(x.values):
        return fp8_linear_reference(x, weight, weight_scale, bias, out_dtype)
    shape = (x.values.shape[0], weight.shape[0], weight.shape[1])
    block_scales = weight_scale.dim() == 2
    if out_dtype is torch.bfloat16 and not block_scales and use_cublas(*shape):
        return _fp8_linear_cublas(x, weight, weight_scale, bias)
    config = fp8_linear_config(*shape, block_scales=block_scales)
    return fp8_linear_triton(x, weight, weight_scale, bias, out_dtype, counters, config)


def fp8_linear_reference(
    x: QuantizedActivation, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    """The same in torch, in float32."""
    out = x.dequantize() @ dequantize_weight(weight, weight_scale).t()
    if bias is not None:
        out += bias
    return out.to(out_dtype)


def _fp8_linear_cublas(x: QuantizedActivation, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
    """Scales of rows, applied to the rounded product: cuBLAS (CUDA 13.0) refuses to apply them for some shapes."""
    one = x.scale.new_ones(())
    out = torch._scaled_mm(
        x.values, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    out.mul_(x.scale).mul_(weight_scale)
    return out if bias is None else out.add_(bias)


def fp8_linear_triton(
    x: QuantizedActivation,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    counters: Tensor,
    config: Fp8LinearConfig,
    *,
    programmatic: bool | None = None,
) -> Tensor:
    """The same as a Triton kernel; `programmatic` replaces what `programmatic_launch` says."""
    tokens, in_features = x.values.shape
    out_features = weight.shape[0]
    block_scales = weight_scale.dim() == 2
    out = weight.new_empty((tokens, out_features), dtype=out_dtype)
    if tokens == 0:
        return out
    if programmatic is None:
        programmatic = programmatic_launch(weight)
    split_width = triton.cdiv(triton.cdiv(in_features, config.splits), config.block_k) * config.block_k
    splits = triton.cdiv(in_features, split_width)
    assert splits == 1 or tokens <= config.block_m, "split sums are counted for one row of tiles"
    assert config.block_n >= MIN_BLOCK_N
    assert not block_scales or (config.block_k == BLOCK and BLOCK % config.block_n == 0)
    partials = weight.new_empty((splits, tokens, out_features), dtype=torch.float32) if splits > 1 else out
    _fp8_linear_kernel[(triton.cdiv(out_features, config.block_n), splits, triton.cdiv(tokens, config.block_m))](
        x.values,
        x.scale,
        weight,
        weight_scale,
        weight_scale if bias is None else bias,
        out,
        partials,
        counters,
        tokens,
        out_features,
        in_features,
        x.scale.stride(0),
        x.scale.stride(1),
        split_width,
        BLOCK_SCALES=block_scales,
        HAS_BIAS=bias is not None,
        SPLIT=splits > 1,
        EVEN_K=in_features % config.block_k == 0,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        # Bytes of each weight row; their addresses must be whole 16 bytes.
        PREFETCH=config.block_k * config.num_stages if programmatic and in_features % 16 == 0 else 0,
        PROGRAMMATIC=programmatic,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(programmatic),
    )
    return out


@triton.jit(
    do_not_specialize=["num_tokens", "x_scale_token_stride", "x_scale_group_stride"],
    do_not_specialize_on_alignment=["x_scale", "bias"],
)
def _fp8_linear_kernel(
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
    BLOCK_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PREFETCH: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: BLOCK_N outputs of BLOCK_M tokens over one slice of K. The last slice to finish adds all up.

    The weight is the left operand: its rows fill the tensor cores where tokens are few.
    """
    n_tile = tl.program_id(0)
    split = tl.program_id(1)
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    live_n = n < out_features
    live_m = m < num_tokens
    # Rows beyond the last are computed from it and never stored.
    weight_rows = weight + tl.minimum(n, out_features - 1).to(tl.int64) * in_features
    x_rows = x + m.to(tl.int64) * in_features
    first_k = split * split_width
    last_k = tl.minimum(first_k + split_width, in_features)
    if PROGRAMMATIC:
        if PREFETCH > 0:
            _prefetch_l2(weight_rows + first_k, tl.minimum(last_k - first_k, PREFETCH))
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()

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
        if BLOCK_SCALES:
            group = k0 // 128
            token_scale = tl.load(
                x_scale + m * x_scale_token_stride + group * x_scale_group_stride, mask=live_m, other=0.0
            )
            block = n_tile * BLOCK_N // 128 * tl.cdiv(in_features, 128) + group
            acc += tl.dot(weight_tile, x_tile) * (token_scale * tl.load(weight_scale + block))[None, :]
        else:
            # Tensor cores keep about 14 bits of a float8 sum: added up in registers every 128 columns, the error does
            # not grow with K. Left alone it passed 6e-3 at K = 8192.
            acc = tl.dot(weight_tile, x_tile, acc, max_num_imprecise_acc=128)

    live = live_n[:, None] & live_m[None, :]
    tile = m.to(tl.int64)[None, :] * out_features + n[:, None]
    if SPLIT:
        plane = num_tokens * out_features
        tl.store(partials + split * plane + tile, acc, mask=live)
        tl.debug_barrier()  # all of the program's sums are written before it counts itself
        if tl.atomic_add(counters + n_tile, 1, sem="acq_rel") != tl.num_programs(1) - 1:
            return
        tl.store(counters + n_tile, 0)
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
        for other in range(tl.num_programs(1)):
            # Past the first-level cache, which knows nothing of what other SMs wrote.
            acc += tl.load(partials + other * plane + tile, mask=live, other=0.0, cache_modifier=".cg")
    if not BLOCK_SCALES:
        token_scale = tl.load(x_scale + m * x_scale_token_stride, mask=live_m, other=0.0)
        row_scale = tl.load(weight_scale + n, mask=live_n, other=0.0)
        acc = acc * row_scale[:, None] * token_scale[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + n, mask=live_n, other=0.0).to(tl.float32)[:, None]
    tl.store(out + tile, acc.to(out.dtype.element_ty), mask=live)


@triton.jit
def _prefetch_l2(rows, num_bytes):
    """Ask for the first `num_bytes` (whole 16 bytes, 16-byte aligned) behind every pointer of `rows` [BLOCK_N]."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; // $0",
        "=r,l,r",
        [rows.to(tl.int64, bitcast=True), num_bytes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
