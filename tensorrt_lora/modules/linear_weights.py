"""The parameters of a projection: what a `LinearMethod` creates, fills and applies."""

import torch
from torch import nn

from tensorrt_lora.kernels.linear_weight import LinearWeight


class LinearWeights(nn.Module):
    """Base of `Linear`. Which parameters there are, and their dtypes, is the method's matter.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        dtype: of activations, of the bias, and of an unquantised weight.
    """

    weight: nn.Parameter  # [out, in]
    bias: nn.Parameter | None  # [out]
    weight_scale: nn.Parameter | None  # float32, see `kernels/fp8_weight`
    input_scale: nn.Parameter | None  # [] float32
    counters: torch.Tensor | None  # of split sums, see `LinearWeight`

    def __init__(self, *, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.dtype = dtype
        for name in ("weight", "bias", "weight_scale", "input_scale"):
            self.register_parameter(name, None)
        self.register_buffer("counters", None, persistent=False)

    def linear_weight(self) -> LinearWeight:
        """The parameters as `linear` reads them."""
        return LinearWeight(self.weight, self.bias, self.weight_scale, self.counters)
