"""A linear layer with an optional LoRA branch.

Used as it is for o_proj and down_proj; `Attention`, `GatedMLP` and `MLP` take its `base` and dispatch the
LoRA of their first projection themselves. Knows nothing of adapters, streams, devices or number formats.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.lora.layer import BaseProjection, LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.modules.checkpoint_target import CheckpointTarget, copy_target
from tensorrt_lora.modules.linear_method import LinearMethod, UnquantizedLinearMethod
from tensorrt_lora.modules.linear_weights import LinearWeights


class Linear(LinearWeights):
    """y = x W^T + b, and LoRA on top where `lora` is given.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: whether there is a bias [out].
        dtype: of activations and bias, and of an unquantised weight; parameters are left uninitialised.
        device: where they live.
        lora: the LoRA branch that `forward` dispatches.
        checkpoint_parts: for a weight that stores several projections one under another, their Hugging Face
            names (which stand in this layer's place) and their row counts, in order.
        method: how the weight is stored and applied; None for as it is.

    Raises:
        ValueError: the method cannot store these sizes.
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
        method: LinearMethod | None = None,
    ) -> None:
        super().__init__(in_features=in_features, out_features=out_features, dtype=dtype)
        assert not checkpoint_parts or sum(rows for _, rows in checkpoint_parts) == out_features
        self.checkpoint_parts = checkpoint_parts
        self._method = method or UnquantizedLinearMethod()
        part_sizes = tuple(rows for _, rows in checkpoint_parts) or (out_features,)
        self._method.create_weights(self, part_sizes, device)
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), requires_grad=False)
        self.lora = lora

    @property
    def input_quantization(self) -> ActivationQuantization | None:
        """How the base reads its input, for the op in front to quantise in passing; None for as it is."""
        return self._method.input_quantization(self)

    def base(self, x: Tensor, quantized: QuantizedActivation | None = None) -> BaseProjection:
        """The projection without LoRA, bound to `x` [T, in]: to be called, or taken apart by a fused plan.

        Args:
            quantized: x under `input_quantization`, if that is done already.
        """
        return self._method.base(self, x, quantized)

    def forward(
        self, x: Tensor, lora_params: LoraParams | None, layer_idx: int, quantized: QuantizedActivation | None = None
    ) -> Tensor:
        """[T, in] -> [T, out], a tensor of its own; `quantized` as for `base`."""
        base = self.base(x, quantized)
        if self.lora is None:
            return base()
        return LoraLayer.forward_with_base(base, (self.lora,), x, lora_params, layer_idx)

    def forward_with_delta(
        self, x: Tensor, lora_params: LoraParams | None, layer_idx: int, quantized: QuantizedActivation | None = None
    ) -> tuple[Tensor, LoraDelta | None]:
        """`forward`, and what the next op has yet to add to it; see `LoraLayer.forward_with_delta`."""
        base = self.base(x, quantized)
        if self.lora is None:
            return base(), None
        return self.lora.forward_with_delta(base, lora_params, layer_idx)

    def parts(self, path: str) -> Iterator[tuple[str, slice]]:
        """(Hugging Face name, rows) of every projection in the weight of this layer, whose own name is `path`."""
        if not self.checkpoint_parts:
            yield path, slice(0, self.out_features)
            return
        parent, start = path.rpartition(".")[0], 0
        for name, size in self.checkpoint_parts:
            yield f"{parent}.{name}" if parent else name, slice(start, start + size)
            start += size

    def checkpoint_targets(self, rows: slice) -> dict[str, CheckpointTarget]:
        """What a checkpoint has for one part, by the last part of its name."""
        targets = self._method.checkpoint_targets(self, rows)
        if self.bias is not None:
            targets["bias"] = copy_target(self.bias[rows])
        return targets

    def set_weight(self, values: Tensor) -> None:
        """Store unquantised values [out, in], each part quantised by itself."""
        for _, rows in self.parts(""):
            self._method.set_weight(self, rows, values[rows])

    def dequantized_weight(self, rows: slice | None = None) -> Tensor:
        """[out, in] (or some rows of it) in `dtype`: the weight itself, or a new tensor where that is quantised."""
        return self._method.dequantized_weight(self, rows or slice(0, self.out_features))
