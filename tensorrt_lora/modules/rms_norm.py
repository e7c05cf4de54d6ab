"""RMSNorm: the weight, and the two forms in which a decoder layer applies it, before a float8 projection or another."""

import torch
from torch import nn

from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.kernels.rms_norm import fused_add_rms_norm, rms_norm


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension, with a weight [size] left uninitialised."""

    def __init__(self, *, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    def forward(
        self, x: torch.Tensor, quantization: ActivationQuantization | None = None
    ) -> tuple[torch.Tensor, QuantizedActivation | None]:
        """[..., size] -> a new tensor of that shape; and its rows quantised, if that is asked for."""
        return rms_norm(x, self.weight, self.eps, quantization)

    def add_and_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        quantization: ActivationQuantization | None = None,
        delta: LoraDelta | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, QuantizedActivation | None]:
        """(norm(residual + x), residual + x), written over the inputs [T, size]; and the norm quantised, likewise.

        `delta` is what a LoRA branch has still to add to x.
        """
        quantized = fused_add_rms_norm(x, residual, self.weight, self.eps, quantization, delta)
        return x, residual, quantized
