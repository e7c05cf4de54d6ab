"""Root-mean-square normalisation over the last dimension, alone and fused with the residual addition.

Called by `modules/rms_norm.py`. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019);
statistics in float32, rounded to the input's dtype before the weight is applied, as in Hugging Face's models.
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight: x [..., N] (rows may be strided), weight [N] -> new [..., N]."""
    return _rms_norm_reference(x, weight, eps)


def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Both in place, [T, N]: `residual` becomes residual + x, and `x` becomes rms_norm of that sum."""
    _fused_add_rms_norm_reference(x, residual, weight, eps)


def _rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x_fp32 = x.float()
    inverse_rms = torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + eps)
    return (x_fp32 * inverse_rms).to(x.dtype) * weight


def _fused_add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> None:
    residual.add_(x)
    x.copy_(_rms_norm_reference(residual, weight, eps))
