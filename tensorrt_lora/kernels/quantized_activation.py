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
def largest_magnitude(x, axis: tl.constexpr):
    """Of float32, without NaN. Compared as integers, in the same order: a warp does that in one instruction."""
    return tl.max(tl.maximum(tl.abs(x), 0.0).to(tl.int32, bitcast=True), axis=axis).to(tl.float32, bitcast=True)


@triton.jit
def fp8_scale(amax):
    """As `scale_of_amax`."""
    return tl.maximum(amax, 1e-12) * (1.0 / 448.0)


@triton.jit
def divide_to_fp8(x, scale, dtype: tl.constexpr, BOUNDED: tl.constexpr):
    """x / scale in float32, rounded to `dtype`, cut off at its largest value. BOUNDED: nothing is beyond it.

    An IEEE division is thirteen instructions. A product and its correction, three, give the same float8 values for an x
    of up to 11 significant bits and a scale within 2^-90 and 2^126. For the corrected quotient is rounded once, from
    within 2^-45 (relative) of x / scale. It may differ from the rounded x / scale where that lies in the middle of two
    neighbours in float32, and float8 sees it if one of them is the middle m of two float8 values. Let m = k * 2^j,
    2^L <= k < 2^(L + 1) <= 32, k odd, scale = S * 2^a, 2^23 <= S < 2^24, and 2^(a + j) the unit. x is half an ulp of m,
    times scale, beside m * scale: x = S * k +- n, S = n * 2^(24 - L) + t, for an integer n <= 2^L and |t| <= 16. Then
    t * k +- n is the difference of x and n * k * 2^(24 - L), both multiples of 2^(11 + L), but at most 512: it is zero.
    So k divides n <= k, both are one, and S is 2^24 - 1: in this case the corrected quotient is the right one.
    """
    # A scale of infinity makes its whole row NaN, as the product with it would.
    if x.dtype.primitive_bitwidth == 16 and dtype.primitive_bitwidth == 8:
        x = x.to(tl.float32)
        inverse = tl.math.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
        scaled = x * inverse
        if not BOUNDED:
            # Before the correction, which infinity would make NaN; the cast cuts off the rest. NaN stays NaN.
            scaled = tl.clamp(scaled, -512.0, 512.0, propagate_nan=tl.PropagateNan.ALL)
        # With these signs zero keeps its own.
        return tl.fma(tl.fma(scaled, scale, x * -1.0), inverse * -1.0, scaled).to(dtype)
    else:
        scaled = tl.math.div_rn(x.to(tl.float32), tl.broadcast_to(scale, x.shape))
        # NaN stays NaN: the engine finds a broken row by its logits.
        return tl.clamp(scaled, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(dtype)


@triton.jit
def store_fp8_chunks(chunks, scale, values, column, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, BOUNDED: tl.constexpr):
    """A row, as `load_chunks` takes it, under one scale; `values` points to its first one."""
    for chunk in tl.static_range(CHUNKS):
        at = chunk * column.shape[0] + column
        tl.store(values + at, divide_to_fp8(chunks[chunk], scale, values.dtype.element_ty, BOUNDED), mask=at < WIDTH)


@triton.jit
def store_fp8_groups(x, column, first_group, values, scale, scale_stride, WIDTH: tl.constexpr):
    """Features x [a multiple of 128] of one token, from a whole group on; zeros where they are beyond WIDTH.

    `column` says which; `values` and `scale` point to the token's first ones, its scales are `scale_stride` apart.
    """
    GROUPS: tl.constexpr = x.shape[0] // 128
    tile = tl.reshape(x, (GROUPS, 128))
    group_scale = fp8_scale(largest_magnitude(tile.to(tl.float32), axis=1))
    quantized = divide_to_fp8(tile, group_scale[:, None], values.dtype.element_ty, BOUNDED=True)
    tl.store(values + column, tl.reshape(quantized, x.shape), mask=column < WIDTH)
    group = first_group + tl.arange(0, GROUPS)
    tl.store(scale + group * scale_stride, group_scale, mask=group * 128 < WIDTH)
