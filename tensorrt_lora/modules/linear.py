"""A linear layer with an optional LoRA branch.

Used as it is for o_proj and down_proj; `Attention`, `GatedMLP` and `MLP` take its `base` and dispatch the
LoRA of their first projection themselves. Knows nothing of adapters, streams or devices.
"""

import torch
from torch import nn

from tensorrt_lora.lora.layer import BaseProjection, LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams


class Linear(nn.Module):
    """y = x W^T + b, and LoRA on top where `lora` is given.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: whether there is a bias [out].
        dtype: of weight [out, in] and bias, both left uninitialised.
        device: where they live.
        lora: the LoRA branch that `forward` dispatches.
        checkpoint_parts: for a weight that stores several projections one under another, their Hugging Face
            names (which stand in this layer's place) and their row counts, in order.
    """

    def __init__(
        self,
        *,
        in_features: int,
        out_features: int,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        lora: LoraLayer | None = None,
        checkpoint_parts: tuple[tuple[str, int], ...] = (),
    ) -> None:
        super().__init__()
        assert not checkpoint_parts or sum(rows for _, rows in checkpoint_parts) == out_features
        self.in_features = in_features
        self.out_features = out_features
        self.checkpoint_parts = checkpoint_parts
        weight = torch.empty((out_features, in_features), dtype=dtype, device=device)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(weight.new_empty(out_features), requires_grad=False)
        self.lora = lora

    def base(self, x: torch.Tensor) -> BaseProjection:
        """The projection without LoRA, bound to `x` [T, in]: to be called, or taken apart by a fused plan."""
        return BaseProjection(x, self.weight, self.bias)

    def forward(self, x: torch.Tensor, lora_params: LoraParams | None, layer_idx: int) -> torch.Tensor:
        """[T, in] -> [T, out], a tensor of its own."""
        if self.lora is None:
            return self.base(x)()
        return LoraLayer.forward_with_base(self.base(x), (self.lora,), x, lora_params, layer_idx)
