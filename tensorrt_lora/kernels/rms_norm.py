"""Root-mean-square normalisation over the last dimension: alone, behind the residual addition, before a quantisation.

Called by `modules/rms_norm.py`. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

Statistics are in float32. Rounded, as Hugging Face's models do, to the input's dtype: the sum with the residual, the
normalised row, its product with the weight. The quantisation reads that product, as if it were an op of its own; and
the sum is taken of x with its LoRA delta, if that is still to be added, rounded as by `lora_add`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_quantize import quantize_reference
from tensorrt_lora.kernels.lora_delta import (
    DELTA_NOT_SPECIALIZED,
    DELTA_SINGLE_VALUES,
    LoraDelta,
    add_delta,
    delta_arguments,
    load_adapter,
    load_delta,
)
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.quantized_activation import (
    ActivationQuantization,
    QuantizedActivation,
    fp8_scale,
    largest_magnitude,
    store_fp8_chunks,
    store_fp8_groups,
)
from tensorrt_lora.kernels.row_shape import load_chunks, row_shape


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, quantization: ActivationQuantization | None = None
) -> tuple[Tensor, QuantizedActivation | None]:
    """x / sqrt(mean(x^2) + eps) * weight: x [..., N] (rows may be strided), weight [N] in x's dtype.

    Returns:
        A new tensor [..., N]; and its rows [-1, N] quantised, if that is asked for.
    """
    assert weight.dtype == x.dtype and weight.shape == x.shape[-1:]
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    quantized = None if quantization is None else quantization.empty(rows)
    normalize = rms_norm_triton if use_triton(x) else rms_norm_reference_into
    normalize(rows, None, weight, eps, out, quantization, quantized)
    return out.view(x.shape), quantized


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    quantization: ActivationQuantization | None = None,
    delta: LoraDelta | None = None,
) -> QuantizedActivation | None:
    """Both in place, [T, N]: `residual` becomes residual + x, and `x` becomes rms_norm of that sum.

    All three have the same dtype; weight is [N]. With `delta`, of one module, x is first what `lora_add` makes of it.
    Returns the new `x` quantised, if that is asked for.
    """
    assert weight.dtype == x.dtype == residual.dtype
    assert weight.shape == x.shape[-1:] and residual.shape == x.shape
    assert delta is None or (delta.tables.num_modules == 1 and delta.values.shape == x.shape)
    quantized = None if quantization is None else quantization.empty(x)
    normalize = rms_norm_triton if use_triton(x) else rms_norm_reference_into
    normalize(x, residual, weight, eps, x, quantization, quantized, delta)
    return quantized


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm in torch: x [..., N] -> a new tensor."""
    x_fp32 = x.float()
    inverse_rms = torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + eps)
    return (x_fp32 * inverse_rms).to(x.dtype) * weight


def rms_norm_reference_into(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    out: Tensor,
    quantization: ActivationQuantization | None,
    quantized: QuantizedActivation | None,
    delta: LoraDelta | None = None,
) -> None:
    """Both ops in torch: x [T, N], `residual` (added to, where there is one), `out` (may be x), `quantized`."""
    x = x if delta is None else delta.added_to(x)
    total = x if residual is None else residual.add_(x)
    out.copy_(rms_norm_reference(total, weight, eps))
    if quantization is not None and quantized is not None:
        quantize_reference(out, quantized.values, quantized.scale, quantization.static_scale)


def rms_norm_triton(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    out: Tensor,
    quantization: ActivationQuantization | None,
    quantized: QuantizedActivation | None,
    delta: LoraDelta | None = None,
) -> None:
    """The same as a Triton kernel."""
    tokens, width = x.shape
    assert x.stride(1) == out.stride(1) == weight.stride(0) == 1 and (residual is None or residual.stride(1) == 1)
    assert delta is None or residual is not None
    if tokens == 0:
        return
    shape = row_shape(width)
    programmatic = programmatic_launch(x)
    # A tensor stands in for what the kernel does not read.
    target = QuantizedActivation(out, out) if quantized is None else quantized
    static_scale = None if quantization is None else quantization.static_scale
    _rms_norm_kernel[(tokens,)](
        x,
        x if residual is None else residual,
        weight,
        out,
        target.values,
        target.scale,
        target.scale if static_scale is None else static_scale,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        out.stride(0),
        target.scale.stride(1),
        *delta_arguments(delta, stand_in=x),
        WIDTH=width,
        EPS=eps,
        ADD=residual is not None,
        HAS_DELTA=delta is not None,
        QUANTIZE="" if quantization is None else quantization.granularity(width),
        BLOCK=shape.block,
        CHUNKS=shape.chunks,
        PROGRAMMATIC=programmatic,
        num_warps=shape.num_warps,
        **launch_options(programmatic),
    )


@triton.jit(
    do_not_specialize=["scale_stride", *DELTA_NOT_SPECIALIZED],
    do_not_specialize_on_alignment=["scale", "static_scale", *DELTA_SINGLE_VALUES],
)
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    values,
    scale,
    static_scale,
    x_stride,
    residual_stride,
    out_stride,
    scale_stride,
    delta,
    b_pool,
    page_table,
    rank,
    extras,
    token_slots,
    num_slots,
    b_row_stride,
    page_stride,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    ADD: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    QUANTIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: one row. Only parameters of the model, and which adapter is the row's, are read before the wait.

    Of 16-bit values, sum and product are taken as such: two at a time, and rounded as a float32 result would be.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    factors = load_chunks(weight, column, WIDTH, CHUNKS)
    if QUANTIZE == "static":
        row_scale = tl.load(static_scale)
    if HAS_DELTA:
        adapter = load_adapter(token_slots, page_table, rank, extras, token, 0, num_slots, page_stride)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    dtype: tl.constexpr = out.dtype.element_ty
    # All loads are ahead of all stores, which might write what they read.
    rows = load_chunks(x + token * x_stride, column, WIDTH, CHUNKS)
    if ADD:
        stream = residual + token * residual_stride
        residuals = load_chunks(stream, column, WIDTH, CHUNKS)
        if HAS_DELTA:
            deltas = tl.tuple(())
            for chunk in tl.static_range(CHUNKS):
                at = chunk * BLOCK + column
                deltas += (load_delta(delta + token * WIDTH + at, at < WIDTH, adapter),)
            with_delta = tl.tuple(())
            for chunk in tl.static_range(CHUNKS):
                at = chunk * BLOCK + column
                with_delta += (add_delta(rows[chunk], deltas[chunk], at < WIDTH, b_pool + at, b_row_stride, adapter),)
            rows = with_delta
        totals = tl.tuple(())
        for chunk in tl.static_range(CHUNKS):
            total = rows[chunk] + residuals[chunk]
            tl.store(stream + chunk * BLOCK + column, total, mask=chunk * BLOCK + column < WIDTH)
            totals += (total,)
        rows = totals
    squares = tl.zeros((BLOCK,), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        value = rows[chunk].to(tl.float32)
        squares = tl.fma(value, value, squares)
    inverse_rms = tl.rsqrt(tl.sum(squares, axis=0) / WIDTH + EPS)

    normed = tl.tuple(())
    largest = tl.zeros((BLOCK,), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        value = (rows[chunk].to(tl.float32) * inverse_rms).to(dtype) * factors[chunk]
        tl.store(out + token * out_stride + chunk * BLOCK + column, value, mask=chunk * BLOCK + column < WIDTH)
        largest = tl.maximum(largest, tl.abs(value.to(tl.float32)))
        normed += (value,)

    values += token * WIDTH
    if QUANTIZE == "group":
        for chunk in tl.static_range(CHUNKS):
            first_group = chunk * (BLOCK // 128)
            store_fp8_groups(
                normed[chunk], chunk * BLOCK + column, first_group, values, scale + token, scale_stride, WIDTH
            )
    elif QUANTIZE != "":
        if QUANTIZE == "token":
            row_scale = fp8_scale(largest_magnitude(largest, axis=0))
        store_fp8_chunks(normed, row_scale, values, column, WIDTH, CHUNKS, BOUNDED=QUANTIZE == "token")
        tl.store(scale + token, row_scale)
