"""Activations in float8_e4m3fn: values and the float32 scales that multiply them.

Called by `lora/fp8_base_projection.py` right before a base projection; LoRA reads the activation as it was. Shapes: T
tokens, K features. Scaled by token, by groups of 128 features of a token, or by a calibrated number.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_weight import BLOCK, FP8_DTYPE, FP8_MAX, scale_of_amax
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch


@dataclass(slots=True)
class QuantizedActivation:
    """What `fp8_linear` reads."""

    values: Tensor
    """[T, K] float8_e4m3fn, contiguous."""
    scale: Tensor
    """[T, 1], or [T, ceil(K / 128)] with the tokens innermost in memory; float32."""

    def dequantize(self) -> Tensor:
        """[T, K] float32."""
        if self.scale.shape[1] == 1:
            return self.values.float() * self.scale
        return self.values.float() * self.scale.repeat_interleave(BLOCK, 1)[:, : self.values.shape[1]]


def quantize_per_token(x: Tensor) -> QuantizedActivation:
    """Each row's largest value becomes `FP8_MAX`. x: [T, K], rows may be strided."""
    return _quantize(x, group_size=x.shape[1], static_scale=None)


def quantize_per_group(x: Tensor) -> QuantizedActivation:
    """The largest of each 128 values of a row becomes `FP8_MAX`. x: [T, K], rows may be strided."""
    return _quantize(x, group_size=BLOCK, static_scale=None)


def quantize_static(x: Tensor, scale: Tensor) -> QuantizedActivation:
    """x / scale, cut off at `FP8_MAX`. x: [T, K], rows may be strided; scale: [] float32."""
    return _quantize(x, group_size=x.shape[1], static_scale=scale)


def _quantize(x: Tensor, group_size: int, static_scale: Tensor | None) -> QuantizedActivation:
    assert x.stride(-1) == 1
    tokens, features = x.shape
    values = torch.empty((tokens, features), dtype=FP8_DTYPE, device=x.device)
    # Tokens innermost: so cuBLAS wants the scales of groups, and [T, 1] is both ways the same.
    scale = x.new_empty((triton.cdiv(features, group_size), tokens), dtype=torch.float32).t()
    quantize = _quantize_triton if use_triton(x) else quantize_reference
    quantize(x, values, scale, static_scale)
    return QuantizedActivation(values, scale)


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
    """A program has a whole row in its registers, or eight groups: 16 to 32 values a thread, or eight."""
    columns = triton.next_power_of_2(group_size)
    if columns <= BLOCK:
        return QuantizeConfig(block_rows=8, block_columns=columns, num_warps=4)
    return QuantizeConfig(block_rows=1, block_columns=columns, num_warps=min(32, max(4, columns // 512)))


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
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = (row // groups).to(tl.int64)
    group = row % groups
    inner = tl.arange(0, BLOCK_COLUMNS)
    column = group[:, None] * GROUP_SIZE + inner[None, :]
    live_row = row < num_rows
    live = live_row[:, None] & (inner < GROUP_SIZE)[None, :] & (column < features)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()

    tile = tl.load(x + token[:, None] * x_stride + column, mask=live, other=0.0).to(tl.float32)
    if STATIC:
        row_scale = tl.load(static_scale) + tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
    else:
        amax = tl.max(tl.abs(tile), axis=1)
        row_scale = tl.maximum(amax, 1e-12) * (1.0 / 448.0)  # as `scale_of_amax`
    scaled = tl.math.div_rn(tile, tl.broadcast_to(row_scale[:, None], (BLOCK_ROWS, BLOCK_COLUMNS)))
    # NaN stays NaN: the engine finds a broken row by its logits.
    scaled = tl.clamp(scaled, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    features_of_token = values + token[:, None] * features + column
    tl.store(features_of_token, scaled.to(values.dtype.element_ty), mask=live)
    tl.store(scale + token * scale_token_stride + group * scale_group_stride, row_scale, mask=live_row)
