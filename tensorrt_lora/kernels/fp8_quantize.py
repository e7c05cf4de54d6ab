"""Activations in float8_e4m3fn: values and the float32 scales that multiply them.

Called by `lora/fp8_base_projection.py` right before a base projection, unless the op in front has done it already; LoRA
reads the activation as it was. Shapes: T tokens, K features. Scaled by token, by groups of 128 features of a token, or
by a calibrated number.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_weight import BLOCK, FP8_MAX, scale_of_amax
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.quantized_activation import (
    ActivationQuantization,
    QuantizedActivation,
    divide_to_fp8,
    fp8_scale,
    largest_magnitude,
    store_fp8_chunks,
    store_fp8_groups,
)
from tensorrt_lora.kernels.row_shape import RowShape, load_chunks, row_shape


def quantize(x: Tensor, quantization: ActivationQuantization) -> QuantizedActivation:
    """x: [T, K], rows may be strided."""
    assert x.stride(-1) == 1
    quantized = quantization.empty(x)
    fill = _quantize_triton if use_triton(x) else quantize_reference
    fill(x, quantized.values, quantized.scale, quantization.static_scale)
    return quantized


def quantize_per_token(x: Tensor) -> QuantizedActivation:
    """Each row's largest value becomes `FP8_MAX`. x: [T, K], rows may be strided."""
    return quantize(x, ActivationQuantization())


def quantize_per_group(x: Tensor) -> QuantizedActivation:
    """The largest of each 128 values of a row becomes `FP8_MAX`. x: [T, K], rows may be strided."""
    return quantize(x, ActivationQuantization(by_group=True))


def quantize_static(x: Tensor, scale: Tensor) -> QuantizedActivation:
    """x / scale, cut off at `FP8_MAX`. x: [T, K], rows may be strided; scale: [] float32."""
    return quantize(x, ActivationQuantization(static_scale=scale))


def quantize_reference(x: Tensor, values: Tensor, scale: Tensor, static_scale: Tensor | None) -> None:
    """Fill `values` [T, K] and `scale` [T, groups]: whole rows if there is one group, else 128 columns each."""
    tokens, features = x.shape
    groups = scale.shape[1]
    width = features if groups == 1 else BLOCK
    padded = functional.pad(x, (0, groups * width - features)).view(tokens, groups, width)
    if static_scale is not None:
        scale.copy_(static_scale.expand(tokens, 1))
    else:
        scale.copy_(scale_of_amax(padded.abs().amax(-1)))
    scaled = (padded.float() / scale[:, :, None]).clamp_(-FP8_MAX, FP8_MAX)
    values.copy_(scaled.flatten(1)[:, :features])


PART_COLUMNS = 1024
"""Of a row: what a program has that need not see the whole row."""
PART_WARPS = 4


def quantize_shape(width: int, granularity: str) -> RowShape:
    """What a program takes of a row: all of it, if its largest value counts."""
    if granularity == "token":
        return row_shape(width)
    return RowShape(block=PART_COLUMNS, chunks=1, num_warps=PART_WARPS)


def _quantize_triton(x: Tensor, values: Tensor, scale: Tensor, static_scale: Tensor | None) -> None:
    tokens, width = x.shape
    assert values.is_contiguous() and scale.stride(0) == 1
    if tokens == 0:
        return
    granularity = "static" if static_scale is not None else "token" if scale.shape[1] == 1 else "group"
    shape = quantize_shape(width, granularity)
    programmatic = programmatic_launch(x)
    _quantize_kernel[(tokens, triton.cdiv(width, shape.block * shape.chunks))](
        x,
        values,
        scale,
        scale if static_scale is None else static_scale,
        x.stride(0),
        scale.stride(1),
        WIDTH=width,
        QUANTIZE=granularity,
        BLOCK=shape.block,
        CHUNKS=shape.chunks,
        PROGRAMMATIC=programmatic,
        num_warps=shape.num_warps,
        **launch_options(programmatic),
    )


@triton.jit(do_not_specialize=["scale_stride"], do_not_specialize_on_alignment=["scale", "static_scale"])
def _quantize_kernel(
    x,
    values,
    scale,
    static_scale,
    x_stride,
    scale_stride,
    WIDTH: tl.constexpr,
    QUANTIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: CHUNKS times BLOCK columns of one token, all of them for a scale by token."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    if QUANTIZE == "static":
        row_scale = tl.load(static_scale)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    rows = load_chunks(x + token * x_stride, column, WIDTH, CHUNKS)
    values += token * WIDTH
    if QUANTIZE == "group":
        store_fp8_groups(rows[0], column, part * (BLOCK // 128), values, scale + token, scale_stride, WIDTH)
    else:
        if QUANTIZE == "token":
            largest = tl.zeros((BLOCK,), tl.float32)
            for chunk in tl.static_range(CHUNKS):
                largest = tl.maximum(largest, tl.abs(rows[chunk].to(tl.float32)))
            row_scale = fp8_scale(largest_magnitude(largest, axis=0))
        store_fp8_chunks(rows, row_scale, values, column, WIDTH, CHUNKS, BOUNDED=QUANTIZE == "token")
        tl.store(scale + token, row_scale, mask=part == 0)


def quantize_by_maxima(x: Tensor, maxima: Tensor, quantized: QuantizedActivation) -> None:
    """As `quantize_per_token`, by many programs a token. On CUDA, or in the interpreter: the rest of a kernel in front.

    Args:
        x: [T, K] contiguous.
        maxima: [T, parts] float32: the largest absolute value of each part of a row, whatever parts these are.
        quantized: written.
    """
    tokens, features = x.shape
    parts = maxima.shape[1]
    assert x.is_contiguous() and maxima.is_contiguous()
    if tokens == 0:
        return
    programmatic = programmatic_launch(x)
    _quantize_by_maxima_kernel[(tokens, triton.cdiv(features, PART_COLUMNS))](
        x,
        maxima,
        quantized.values,
        quantized.scale,
        FEATURES=features,
        PARTS=parts,
        BLOCK=PART_COLUMNS,
        BLOCK_PARTS=triton.next_power_of_2(parts),
        PROGRAMMATIC=programmatic,
        num_warps=PART_WARPS,
        **launch_options(programmatic),
    )


@triton.jit(do_not_specialize_on_alignment=["maxima", "scale"])
def _quantize_by_maxima_kernel(
    x,
    maxima,
    values,
    scale,
    FEATURES: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: BLOCK columns of one token."""
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    live = column < FEATURES
    row = tl.load(x + token * FEATURES + column, mask=live, other=0.0)
    parts = tl.arange(0, BLOCK_PARTS)
    of_row = tl.load(maxima + token * PARTS + parts, mask=parts < PARTS, other=0.0)
    row_scale = fp8_scale(largest_magnitude(of_row, axis=0))
    quantized = divide_to_fp8(row, row_scale, values.dtype.element_ty, BOUNDED=True)
    tl.store(values + token * FEATURES + column, quantized, mask=live)
    tl.store(scale + token, row_scale, mask=part == 0)
