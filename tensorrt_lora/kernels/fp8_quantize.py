"""Activations in float8_e4m3fn: values and the float32 scales that multiply them.

Called by `lora/fp8_base_projection.py` right before a base projection, unless the op in front has done it already; LoRA
reads the activation as it was. Shapes: T tokens, K features. Scaled by token, by groups of 128 features of a token, or
by a calibrated number.
"""

from dataclasses import dataclass

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
)


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


@dataclass(frozen=True, slots=True)
class QuantizeConfig:
    """Launch shape: groups of a program, and the power of two that covers one."""

    block_rows: int
    block_columns: int
    num_warps: int


def quantize_config(group_size: int) -> QuantizeConfig:
    """A program has a whole row in its registers, or eight groups: eight to 32 values a thread, or eight."""
    columns = triton.next_power_of_2(group_size)
    if columns <= BLOCK:
        return QuantizeConfig(block_rows=8, block_columns=columns, num_warps=4)
    return QuantizeConfig(block_rows=1, block_columns=columns, num_warps=min(32, max(4, columns // 256)))


def _quantize_triton(x: Tensor, values: Tensor, scale: Tensor, static_scale: Tensor | None) -> None:
    tokens, features = x.shape
    groups = scale.shape[1]
    group_size = features if groups == 1 else BLOCK
    config = quantize_config(group_size)
    rows = tokens * groups
    programmatic = programmatic_launch(x)
    if rows == 0:
        return
    _quantize_kernel[(triton.cdiv(rows, config.block_rows),)](
        x,
        values,
        scale,
        scale if static_scale is None else static_scale,
        rows,
        groups,
        features,
        x.stride(0),
        scale.stride(0),
        scale.stride(1),
        GROUP_SIZE=group_size,
        STATIC=static_scale is not None,
        BLOCK_ROWS=config.block_rows,
        BLOCK_COLUMNS=config.block_columns,
        PROGRAMMATIC=programmatic,
        num_warps=config.num_warps,
        **launch_options(programmatic),
    )


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["scale", "static_scale"])
def _quantize_kernel(
    x,
    values,
    scale,
    static_scale,
    num_rows,
    groups,
    features,
    x_stride,
    scale_token_stride,
    scale_group_stride,
    GROUP_SIZE: tl.constexpr,
    STATIC: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: BLOCK_ROWS groups, of one token or of several."""
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = (row // groups).to(tl.int64)
    group = row % groups
    inner = tl.arange(0, BLOCK_COLUMNS)
    column = group[:, None] * GROUP_SIZE + inner[None, :]
    live_row = row < num_rows
    live = live_row[:, None] & (inner < GROUP_SIZE)[None, :] & (column < features)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()

    tile = tl.load(x + token[:, None] * x_stride + column, mask=live, other=0.0).to(tl.float32)
    if STATIC:
        row_scale = tl.load(static_scale) + tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
    else:
        row_scale = fp8_scale(tl.max(tl.abs(tile), axis=1))
    quantized = divide_to_fp8(tile, row_scale[:, None], values.dtype.element_ty)
    tl.store(values + token[:, None] * features + column, quantized, mask=live)
    tl.store(scale + token * scale_token_stride + group * scale_group_stride, row_scale, mask=live_row)


MAXIMA_COLUMNS = 1024
"""Of a part: what `quantize_by_maxima` has a program for."""
MAXIMA_WARPS = 4


def quantize_by_maxima(x: Tensor, maxima: Tensor, quantized: QuantizedActivation) -> None:
    """As `quantize_per_token`, by many programs a token. On CUDA, or in the interpreter: the rest of a kernel in front.

    Args:
        x: [T, K] contiguous.
        maxima: [T, ceil(K / MAXIMA_COLUMNS)] float32: the largest absolute value of each part of a row.
        quantized: written.
    """
    tokens, features = x.shape
    parts = maxima.shape[1]
    assert x.is_contiguous() and maxima.is_contiguous() and parts == triton.cdiv(features, MAXIMA_COLUMNS)
    if tokens == 0:
        return
    programmatic = programmatic_launch(x)
    _quantize_by_maxima_kernel[(tokens, parts)](
        x,
        maxima,
        quantized.values,
        quantized.scale,
        FEATURES=features,
        BLOCK=MAXIMA_COLUMNS,
        BLOCK_PARTS=triton.next_power_of_2(parts),
        PROGRAMMATIC=programmatic,
        num_warps=MAXIMA_WARPS,
        **launch_options(programmatic),
    )


@triton.jit(do_not_specialize_on_alignment=["maxima", "scale"])
def _quantize_by_maxima_kernel(
    x,
    maxima,
    values,
    scale,
    FEATURES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: one part of one token."""
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    live = column < FEATURES
    row = tl.load(x + token * FEATURES + column, mask=live, other=0.0).to(tl.float32)
    parts = tl.arange(0, BLOCK_PARTS)
    of_row = tl.load(maxima + token * tl.num_programs(1) + parts, mask=parts < tl.num_programs(1), other=0.0)
    row_scale = fp8_scale(tl.max(of_row, axis=0))
    tl.store(values + token * FEATURES + column, divide_to_fp8(row, row_scale, values.dtype.element_ty), mask=live)
    tl.store(scale + token, row_scale, mask=part == 0)
