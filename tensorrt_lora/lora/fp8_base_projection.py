"""The base projection of a float8 weight, as `LoraLayer.forward_with_base` sees it.

Made by `modules/`'s linear methods. LoRA reads `x` as it is; the base reads it quantised.
"""

from dataclasses import dataclass

import torch

from tensorrt_lora.kernels.fp8_linear import fp8_linear
from tensorrt_lora.kernels.fp8_quantize import (
    QuantizedActivation,
    quantize_per_group,
    quantize_per_token,
    quantize_static,
)
from tensorrt_lora.lora.layer import BaseProjection


@dataclass(slots=True)
class Fp8BaseProjection(BaseProjection):
    """`weight` is [out, in] float8_e4m3fn; calling it quantises `x`, multiplies and scales."""

    weight_scale: torch.Tensor  # [out], or [ceil(out / 128), ceil(in / 128)]; float32
    input_scale: torch.Tensor | None  # [] float32; None: scaled as it comes
    counters: torch.Tensor  # of split sums, see `fp8_linear`

    def quantize(self) -> QuantizedActivation:
        """`x` as the base reads it: [tokens, in]."""
        rows = self.x.reshape(-1, self.x.shape[-1])
        if self.weight_scale.dim() == 2:
            return quantize_per_group(rows)
        if self.input_scale is not None:
            return quantize_static(rows, self.input_scale)
        return quantize_per_token(rows)

    def __call__(self) -> torch.Tensor:
        out = fp8_linear(self.quantize(), self.weight, self.weight_scale, self.bias, self.x.dtype, self.counters)
        return out.view(*self.x.shape[:-1], -1)
