"""How a float8 projection reads its input, and that input: values, and the float32 scales that multiply them.

Made by `fp8_quantize`, or by the op in front (`rms_norm`, `activation`) in the same pass; read by `linear`. The
functions below are parts of their kernels, so that all of them round alike. Knows no projection.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.fp8_weight import BLOCK, FP8_DTYPE


@dataclass(slots=True)
class QuantizedActivation:
    """What `linear` reads: T tokens of K features."""

    values: Tensor
    """[T, K] float8_e4m3fn, contiguous."""
    scale: Tensor
    """[T, 1], or [T, ceil(K / 128)] with the tokens innermost in memory; float32."""

    def dequantize(self) -> Tensor:
        """[T, K] float32."""
        if self.scale.shape[1] == 1:
            return self.values.float() * self.scale
        return self.values.float() * self.scale.repeat_interleave(BLOCK, 1)[:, : self.values.shape[1]]


@dataclass(frozen=True, slots=True, eq=False)
class ActivationQuantization:
    """What the values of a token are divided by: their own largest one, unless a calibrated number is given."""

    by_group: bool = False
    """A scale for each 128 features of a token, not for all of them."""
    static_scale: Tensor | None = None
    """[] float32, for all tokens."""

    def granularity(self, features: int) -> str:
        """ "token", "group" or "static", as kernels ask for it; a token of one group is a token."""
        if self.static_scale is not None:
            return "static"
        return "group" if self.by_group and features > BLOCK else "token"

    def empty(self, x: Tensor) -> QuantizedActivation:
        """Uninitialised, for x [T, K]."""
        tokens, features = x.shape
        groups = triton.cdiv(features, BLOCK) if self.granularity(features) == "group" else 1
        # Tokens innermost: so cuBLAS wants the scales of groups, and [T, 1] is both ways the same.
        scale = x.new_empty((groups, tokens), dtype=torch.float32).t()
        return QuantizedActivation(torch.empty((tokens, features), dtype=FP8_DTYPE, device=x.device), scale)


@triton.jit
def fp8_scale(amax):
    """As `scale_of_amax`."""
    return tl.maximum(amax, 1e-12) * (1.0 / 448.0)


@triton.jit
def divide_to_fp8(x, scale, dtype: tl.constexpr):
    """x / scale in float32, cut off at the largest value of `dtype`."""
    scaled = tl.math.div_rn(x, tl.broadcast_to(scale, x.shape))
    # NaN stays NaN: the engine finds a broken row by its logits.
    return tl.clamp(scaled, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(dtype)


@triton.jit
def store_fp8_groups(x, column, first_group, values, scale, scale_stride, WIDTH: tl.constexpr):
    """Features x [a multiple of 128] (float32) of one token, from a whole group on; zeros where they are beyond WIDTH.

    `column` says which; `values` and `scale` point to the token's first ones, its scales are `scale_stride` apart.
    """
    GROUPS: tl.constexpr = x.shape[0] // 128
    tile = tl.reshape(x, (GROUPS, 128))
    group_scale = fp8_scale(tl.max(tl.abs(tile), axis=1))
    quantized = divide_to_fp8(tile, group_scale[:, None], values.dtype.element_ty)
    tl.store(values + column, tl.reshape(quantized, x.shape), mask=column < WIDTH)
    group = first_group + tl.arange(0, GROUPS)
    tl.store(scale + group * scale_stride, group_scale, mask=group * 128 < WIDTH)
