"""A weight as a projection reads it. Made by `modules/`, read by `linear`, `streamed_linear` and `lora_linear`."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from tensorrt_lora.kernels.streamed_linear_config import MIN_BLOCK_N


def tile_counters(out_features: int, device: torch.device) -> Tensor:
    """What finished tiles are counted in: zeros, and zeros again after each call. One for each weight."""
    return torch.zeros(triton.cdiv(out_features, MIN_BLOCK_N), dtype=torch.int32, device=device)


@dataclass(slots=True)
class LinearWeight:
    """A weight as it is stored, with what a product needs of it."""

    values: Tensor
    """[N, K], contiguous: float8_e4m3fn with a scale, or the dtype of activations without."""
    bias: Tensor | None = None
    """[N] in the dtype of activations."""
    scale: Tensor | None = None
    """[N], or [ceil(N / 128), ceil(K / 128)]; float32, contiguous."""
    counters: Tensor | None = None
    """This weight's `tile_counters`; None leaves an unquantised product to cuBLAS."""
