"""The base projection of a float8 weight, as `LoraLayer.forward_with_base` sees it.

Made by `modules/`'s linear methods. LoRA reads `x` as it is; the base reads it quantised.
"""

from dataclasses import dataclass

from tensorrt_lora.kernels.fp8_quantize import quantize
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.lora.layer import BaseProjection


@dataclass(slots=True)
class Fp8BaseProjection(BaseProjection):
    """The weight is float8 with scales; calling it quantises `x`, multiplies and scales."""

    quantization: ActivationQuantization
    quantized: QuantizedActivation | None  # `x` as the base reads it, where what made `x` quantised it too

    def base_input(self) -> QuantizedActivation:
        if self.quantized is not None:
            return self.quantized
        return quantize(self.x.reshape(-1, self.x.shape[-1]), self.quantization)
