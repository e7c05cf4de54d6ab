"""RMSNorm: the weight, and the two forms in which a decoder layer applies it."""

import torch
from torch import nn

from tensorrt_lora.kernels.rms_norm import fused_add_rms_norm, rms_norm


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension, with a weight [size] left uninitialised."""

    def __init__(self, *, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> a new tensor of that shape."""
        return rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(residual + x), residual + x), written over the two inputs [T, size]."""
        fused_add_rms_norm(x, residual, self.weight, self.eps)
        return x, residual
