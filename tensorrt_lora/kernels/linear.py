"""y = x W^T of any stored weight: the base projections.

Called by `lora/`'s base projections. Shapes: T tokens, K inputs, N outputs. Few tokens are bound by the bytes of the
weight and run as `streamed_linear`; many are cuBLAS's, but for scales of blocks, which cuBLAS (CUDA 13.0) refuses.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_weight import dequantize_weight
from tensorrt_lora.kernels.linear_weight import LinearWeight
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.scale_product import scale_product
from tensorrt_lora.kernels.streamed_linear import streamed_linear_triton
from tensorrt_lora.kernels.streamed_linear_config import streamed_linear_config, use_cublas

_MIN_ROW_SCALED_TOKENS = 256  # below, cuBLAS is faster without the scales of rows, by more than applying them takes


def linear(x: Tensor | QuantizedActivation, weight: LinearWeight, out_dtype: torch.dtype) -> Tensor:
    """x W^T + bias as a new tensor [T, N] of `out_dtype`. Equal calls give equal bits: sums have a fixed order.

    Args:
        x: [T, K] in the weight's dtype; for float8, quantised per token (or static), or per group where the weight
            has a scale per block.
    """
    values = x.values if isinstance(x, QuantizedActivation) else x
    assert values.shape[1] == weight.values.shape[1] and weight.values.is_contiguous()
    assert isinstance(x, QuantizedActivation) == (weight.scale is not None)
    if not use_triton(values):
        return linear_reference(x, weight, out_dtype)
    if weight.counters is None or values.itemsize > 2 or not values.is_contiguous():
        assert not isinstance(x, QuantizedActivation)
        return functional.linear(x, weight.values, weight.bias)
    block_scales = weight.scale is not None and weight.scale.dim() == 2
    shape = (values.shape[0], *weight.values.shape)
    if not block_scales and out_dtype is torch.bfloat16 and use_cublas(*shape, itemsize=values.itemsize):
        return _linear_cublas(x, weight)
    config = streamed_linear_config(*shape, itemsize=values.itemsize, block_scales=block_scales)
    return streamed_linear_triton(x, weight, out_dtype, config)


def linear_reference(x: Tensor | QuantizedActivation, weight: LinearWeight, out_dtype: torch.dtype) -> Tensor:
    """The same in torch; of float8 in float32."""
    if not isinstance(x, QuantizedActivation):
        return functional.linear(x, weight.values, weight.bias).to(out_dtype)
    assert weight.scale is not None
    out = x.dequantize() @ dequantize_weight(weight.values, weight.scale).t()
    if weight.bias is not None:
        out += weight.bias
    return out.to(out_dtype)


def _linear_cublas(x: Tensor | QuantizedActivation, weight: LinearWeight) -> Tensor:
    if not isinstance(x, QuantizedActivation):
        return functional.linear(x, weight.values, weight.bias)
    assert weight.scale is not None
    if x.values.shape[0] >= _MIN_ROW_SCALED_TOKENS:
        try:
            out = _scaled_mm(x, weight, x.scale, weight.scale[None, :])
            return out if weight.bias is None else out.add_(weight.bias)
        except RuntimeError as error:
            # For some shapes cuBLAS (CUDA 13.0) has no kernel that scales rows. It says so before it launches one.
            if "CUBLAS_STATUS_NOT_SUPPORTED" not in str(error):
                raise
    one = x.scale.new_ones(())
    out = _scaled_mm(x, weight, one, one)
    scale_product(out, x.scale, weight.scale, weight.bias)
    return out


def _scaled_mm(x: QuantizedActivation, weight: LinearWeight, x_scale: Tensor, weight_scale: Tensor) -> Tensor:
    return torch._scaled_mm(
        x.values,
        weight.values.t(),
        scale_a=x_scale,
        scale_b=weight_scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
