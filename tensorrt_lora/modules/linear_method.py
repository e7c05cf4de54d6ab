"""How the weight of a projection is stored, loaded and applied: the strategy that `Linear` takes."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from tensorrt_lora.kernels.linear_weight import tile_counters
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.lora.layer import BaseProjection
from tensorrt_lora.modules.checkpoint_target import CheckpointTarget, copy_target
from tensorrt_lora.modules.linear_weights import LinearWeights


class LinearMethod(ABC):
    """Holds no tensors: they are in the `LinearWeights` that every call is given.

    A weight may store several projections one under another; `rows` is one of them.
    """

    @abstractmethod
    def create_weights(self, weights: LinearWeights, part_sizes: tuple[int, ...], device: torch.device) -> None:
        """Register the weight [out, in] and what belongs to it, uninitialised.

        Args:
            part_sizes: rows of each projection in the weight.

        Raises:
            ValueError: these sizes cannot be stored so.
        """

    @abstractmethod
    def input_quantization(self, weights: LinearWeights) -> ActivationQuantization | None:
        """How the product reads its input; None for as it is."""

    @abstractmethod
    def base(self, weights: LinearWeights, x: Tensor, quantized: QuantizedActivation | None) -> BaseProjection:
        """x W^T + bias, bound to x [..., in] and not yet computed.

        Args:
            quantized: the rows of x under `input_quantization`, where what made x quantised them too.
        """

    @abstractmethod
    def checkpoint_targets(self, weights: LinearWeights, rows: slice) -> dict[str, CheckpointTarget]:
        """What a checkpoint has for these rows, by the last part of its name ("weight", "weight_scale")."""

    @abstractmethod
    def set_weight(self, weights: LinearWeights, rows: slice, values: Tensor) -> None:
        """Store unquantised values [rows, in], of any float dtype and on any device."""

    @abstractmethod
    def dequantized_weight(self, weights: LinearWeights, rows: slice) -> Tensor:
        """[rows, in] in the dtype of activations; for an unquantised weight, the weight itself."""


class UnquantizedLinearMethod(LinearMethod):
    """The weight in the dtype of activations."""

    def create_weights(self, weights: LinearWeights, part_sizes: tuple[int, ...], device: torch.device) -> None:
        weight = torch.empty((weights.out_features, weights.in_features), dtype=weights.dtype, device=device)
        weights.weight = nn.Parameter(weight, requires_grad=False)
        weights.counters = tile_counters(weights.out_features, device)

    def input_quantization(self, weights: LinearWeights) -> None:
        return None

    def base(self, weights: LinearWeights, x: Tensor, quantized: QuantizedActivation | None) -> BaseProjection:
        assert quantized is None
        return BaseProjection(x, weights.linear_weight())

    def checkpoint_targets(self, weights: LinearWeights, rows: slice) -> dict[str, CheckpointTarget]:
        return {"weight": copy_target(weights.weight[rows])}

    def set_weight(self, weights: LinearWeights, rows: slice, values: Tensor) -> None:
        weights.weight[rows].copy_(values)

    def dequantized_weight(self, weights: LinearWeights, rows: slice) -> Tensor:
        return weights.weight[rows]
