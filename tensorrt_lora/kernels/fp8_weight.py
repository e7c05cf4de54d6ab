"""Weights in float8_e4m3fn: quantised once when a model is loaded, dequantised by references and by DoRA.

Called by `modules/`'s linear methods and by the references of the FP8 ops. Plain torch on any device.

The scale of a weight [N, K] is float32 and multiplies the stored values: [N], one per row (all alike where a tensor has
one), or [ceil(N / 128), ceil(K / 128)], one per block of 128 x 128.
"""

import torch
from torch import Tensor
from torch.nn import functional

FP8_DTYPE = torch.float8_e4m3fn
FP8_MAX = 448.0  # largest finite value of float8_e4m3fn
BLOCK = 128

_SMALLEST_AMAX = 1e-12  # keeps the scale of an all-zero tensor finite and its inverse too


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> (values [N, K] float8, scale [] float32): the largest value becomes `FP8_MAX`."""
    scale = scale_of_amax(weight.abs().amax())
    return _to_fp8(weight.float().div_(scale)), scale


def quantize_weight_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> (values [N, K] float8, scale [ceil(N / 128), ceil(K / 128)] float32)."""
    rows, columns = weight.shape
    padded = functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    scale = scale_of_amax(blocks.abs().amax((1, 3)))
    values = _to_fp8(blocks.float().div_(scale[:, None, :, None]))
    return values.view(padded.shape)[:rows, :columns].contiguous(), scale


def dequantize_weight(values: Tensor, scale: Tensor) -> Tensor:
    """values [N, K] float8 and scale [N] or [ceil(N / 128), ceil(K / 128)] -> [N, K] float32."""
    rows, columns = values.shape
    by_block = scale.dim() == 2
    per_row = scale.repeat_interleave(BLOCK, 0)[:rows] if by_block else scale[:, None]
    return values.float().mul_(per_row.repeat_interleave(BLOCK, 1)[:, :columns] if by_block else per_row)


def scale_of_amax(amax: Tensor) -> Tensor:
    """The float32 scale under which `amax` becomes `FP8_MAX`."""
    return amax.float().clamp(min=_SMALLEST_AMAX) * (1.0 / FP8_MAX)


def _to_fp8(scaled: Tensor) -> Tensor:
    # A cast alone turns what rounds to beyond the largest value into NaN.
    return scaled.clamp_(-FP8_MAX, FP8_MAX).to(FP8_DTYPE)
