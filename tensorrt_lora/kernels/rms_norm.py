"""Root-mean-square normalisation over the last dimension, alone and fused with the residual addition.

Called by `modules/rms_norm.py`. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

Statistics are in float32. The reference rounds as Hugging Face's models do: the sum with the residual, then
the normalised row, then its product with the weight, each to the input's dtype. FlashInfer's kernels keep all
of it in float32 and round what they store: the two differ by about a unit in the last place.
"""

import torch

from tensorrt_lora.kernels.flashinfer_dispatch import use_flashinfer


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight: x [..., N] (rows may be strided), weight [N] -> new [..., N].

    Both have the same dtype.
    """
    assert weight.dtype == x.dtype and weight.shape == x.shape[-1:]
    if use_flashinfer(x):
        return _rms_norm_flashinfer(x, weight, eps)
    return rms_norm_reference(x, weight, eps)


def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Both in place, [T, N]: `residual` becomes residual + x, and `x` becomes rms_norm of that sum.

    All three have the same dtype; weight is [N].
    """
    assert weight.dtype == x.dtype == residual.dtype
    assert weight.shape == x.shape[-1:] and residual.shape == x.shape
    if use_flashinfer(x, residual):
        _fused_add_rms_norm_flashinfer(x, residual, weight, eps)
    else:
        fused_add_rms_norm_reference(x, residual, weight, eps)


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The same in torch."""
    x_fp32 = x.float()
    inverse_rms = torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + eps)
    return (x_fp32 * inverse_rms).to(x.dtype) * weight


def fused_add_rms_norm_reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """The same in torch."""
    residual.add_(x)
    x.copy_(rms_norm_reference(residual, weight, eps))


def _rms_norm_flashinfer(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    import flashinfer

    out = torch.empty_like(x)
    flashinfer.rmsnorm(x, weight, eps, out=out)
    return out


def _fused_add_rms_norm_flashinfer(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    import flashinfer

    flashinfer.fused_add_rmsnorm(x, residual, weight, eps)
