"""The ways to quantise an activation, and a place for it that keeps what is computed before the cast to float8."""

import torch
from torch import Tensor

from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation

QUANTIZATIONS = [
    ActivationQuantization(),
    ActivationQuantization(by_group=True),
    ActivationQuantization(static_scale=torch.tensor(0.01)),
]


def empty_uncast(x: Tensor, quantization: ActivationQuantization) -> QuantizedActivation:
    """NaN where values [T, K] (float32, for the interpreter casts to float8 wrongly) and scales belong."""
    scale = quantization.empty(x).scale.fill_(torch.nan)
    return QuantizedActivation(torch.full(x.shape, torch.nan), scale)
