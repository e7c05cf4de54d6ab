"""The scales of rows, applied to a product of float8 that was computed without them.

Called by `linear` for many tokens. Shapes: T tokens, N outputs.
"""

import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton

BLOCK_T = 8
BLOCK_N = 1024
NUM_WARPS = 8


def scale_product(out: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None) -> None:
    """out = out * x_scale * weight_scale + bias, computed in float32, in place.

    Args:
        out: [T, N], contiguous.
        x_scale: [T, 1] float32.
        weight_scale: [N] float32.
        bias: [N] in out's dtype.
    """
    assert out.is_contiguous() and x_scale.shape == (out.shape[0], 1) and weight_scale.shape == out.shape[1:]
    if use_triton(out):
        _scale_product_triton(out, x_scale, weight_scale, bias)
    else:
        scale_product_reference(out, x_scale, weight_scale, bias)


def scale_product_reference(out: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None) -> None:
    """The same in torch."""
    scaled = out.float() * (x_scale * weight_scale)
    out.copy_(scaled if bias is None else scaled + bias.float())


def _scale_product_triton(out: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None) -> None:
    tokens, features = out.shape
    if tokens == 0:
        return
    _scale_product_kernel[triton.cdiv(features, BLOCK_N), triton.cdiv(tokens, BLOCK_T)](
        out,
        x_scale,
        weight_scale,
        weight_scale if bias is None else bias,
        tokens,
        features,
        x_scale.stride(0),
        HAS_BIAS=bias is not None,
        BLOCK_T=BLOCK_T,
        BLOCK_N=BLOCK_N,
        num_warps=NUM_WARPS,
    )


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["x_scale"])
def _scale_product_kernel(
    out,
    x_scale,
    weight_scale,
    bias,
    tokens,
    features,
    x_scale_stride,
    HAS_BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_T rows, BLOCK_N columns."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    live_n, live_t = n < features, t < tokens
    live = live_t[:, None] & live_n[None, :]
    tile = out + t.to(tl.int64)[:, None] * features + n[None, :]
    token_scale = tl.load(x_scale + t * x_scale_stride, mask=live_t, other=0.0)
    row_scale = tl.load(weight_scale + n, mask=live_n, other=0.0)
    scaled = tl.load(tile, mask=live, other=0.0).to(tl.float32) * (token_scale[:, None] * row_scale[None, :])
    if HAS_BIAS:
        scaled += tl.load(bias + n, mask=live_n, other=0.0).to(tl.float32)[None, :]
    tl.store(tile, scaled.to(out.dtype.element_ty), mask=live)
