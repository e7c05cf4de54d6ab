"""Projections in float8: a scale per weight row or per block, activations scaled as they come or by a fixed number.

A weight that stores several projections keeps the scale of each: `weight_scale` has one entry per row (or block), and
the product is scaled by row, which costs nothing there. So the stored values are those of the checkpoint, bit for bit,
where other engines requantise all parts to the largest scale and round a second time.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from tensorrt_lora.kernels.fp8_weight import (
    BLOCK,
    FP8_DTYPE,
    FP8_MAX,
    dequantize_weight,
    quantize_weight,
    quantize_weight_blocks,
)
from tensorrt_lora.kernels.linear_weight import tile_counters
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.lora.fp8_base_projection import Fp8BaseProjection
from tensorrt_lora.modules.checkpoint_target import FLOAT_DTYPES, FP8_DTYPES, CheckpointTarget, copy_target
from tensorrt_lora.modules.linear_method import LinearMethod
from tensorrt_lora.modules.linear_weights import LinearWeights

# Of dummy weights, whose activations stay within a few deviations of 1.
_UNCALIBRATED_INPUT_SCALE = 16.0 / FP8_MAX


class _Fp8Method(LinearMethod):
    """What the two granularities share.

    Args:
        in_checkpoint: whether the checkpoint stores float8 and scales; else its weights are quantised as they arrive.
    """

    def __init__(self, *, in_checkpoint: bool) -> None:
        self._in_checkpoint = in_checkpoint

    def create_weights(self, weights: LinearWeights, part_sizes: tuple[int, ...], device: torch.device) -> None:
        values = torch.empty((weights.out_features, weights.in_features), dtype=FP8_DTYPE, device=device)
        weights.weight = nn.Parameter(values, requires_grad=False)
        scale = torch.empty(self._scale_shape(weights), dtype=torch.float32, device=device)
        weights.weight_scale = nn.Parameter(scale, requires_grad=False)
        weights.counters = tile_counters(weights.out_features, device)

    @abstractmethod
    def input_quantization(self, weights: LinearWeights) -> ActivationQuantization: ...

    def base(self, weights: LinearWeights, x: Tensor, quantized: QuantizedActivation | None) -> Fp8BaseProjection:
        return Fp8BaseProjection(x, weights.linear_weight(), self.input_quantization(weights), quantized)

    def checkpoint_targets(self, weights: LinearWeights, rows: slice) -> dict[str, CheckpointTarget]:
        values = weights.weight[rows]
        if self._in_checkpoint:
            return {"weight": copy_target(values, FP8_DTYPES), "weight_scale": self._scale_target(weights, rows)}

        def quantize(stored: Tensor) -> None:
            self.set_weight(weights, rows, stored)

        return {"weight": CheckpointTarget(values, (tuple(values.shape),), FLOAT_DTYPES, quantize)}

    def dequantized_weight(self, weights: LinearWeights, rows: slice) -> Tensor:
        return dequantize_weight(weights.weight[rows], self._scale_rows(weights, rows)).to(weights.dtype)

    @abstractmethod
    def _scale_shape(self, weights: LinearWeights) -> tuple[int, ...]:
        """Shape of `weight_scale`."""

    @abstractmethod
    def _scale_rows(self, weights: LinearWeights, rows: slice) -> Tensor:
        """The part of `weight_scale` that belongs to these rows."""

    @abstractmethod
    def _scale_target(self, weights: LinearWeights, rows: slice) -> CheckpointTarget:
        """Where the checkpoint's scale of these rows goes."""


class Fp8LinearMethod(_Fp8Method):
    """One scale for each row of the weight, of which a part quantised as a whole has as many equal ones.

    Args:
        static_activations: whether activations are divided by a calibrated `input_scale`; else by their own largest
            value, token by token.
    """

    def __init__(self, *, static_activations: bool, in_checkpoint: bool) -> None:
        super().__init__(in_checkpoint=in_checkpoint)
        self._static_activations = static_activations

    def create_weights(self, weights: LinearWeights, part_sizes: tuple[int, ...], device: torch.device) -> None:
        super().create_weights(weights, part_sizes, device)
        if self._static_activations:
            unknown = torch.full((), torch.nan, dtype=torch.float32, device=device)
            weights.input_scale = nn.Parameter(unknown, requires_grad=False)

    def input_quantization(self, weights: LinearWeights) -> ActivationQuantization:
        return ActivationQuantization(static_scale=weights.input_scale)

    def checkpoint_targets(self, weights: LinearWeights, rows: slice) -> dict[str, CheckpointTarget]:
        targets = super().checkpoint_targets(weights, rows)
        if weights.input_scale is not None and self._in_checkpoint:
            scale = weights.input_scale

            def raise_to(stored: Tensor) -> None:
                # Parts of one weight read the same input: the largest scale cuts off none of them. NaN is no scale yet.
                scale.copy_(torch.fmax(scale, stored.reshape(()).to(scale)))

            targets["input_scale"] = CheckpointTarget(scale, ((), (1,)), FLOAT_DTYPES, raise_to)
        return targets

    def set_weight(self, weights: LinearWeights, rows: slice, values: Tensor) -> None:
        quantized, scale = quantize_weight(values.to(weights.weight.device))
        weights.weight[rows].copy_(quantized)
        self._scale_rows(weights, rows).copy_(scale)
        if weights.input_scale is not None:
            weights.input_scale.fill_(_UNCALIBRATED_INPUT_SCALE)

    def _scale_shape(self, weights: LinearWeights) -> tuple[int, ...]:
        return (weights.out_features,)

    def _scale_rows(self, weights: LinearWeights, rows: slice) -> Tensor:
        assert weights.weight_scale is not None
        return weights.weight_scale[rows]

    def _scale_target(self, weights: LinearWeights, rows: slice) -> CheckpointTarget:
        scale = self._scale_rows(weights, rows)
        count = len(scale)
        shapes: tuple[tuple[int, ...], ...] = ((count, 1), (count,), (1,), ())
        return CheckpointTarget(scale, shapes, FLOAT_DTYPES, lambda stored: scale.copy_(stored.reshape(-1)))


class Fp8BlockLinearMethod(_Fp8Method):
    """One scale for each block of 128 x 128, activations scaled by their own largest value in groups of 128."""

    def create_weights(self, weights: LinearWeights, part_sizes: tuple[int, ...], device: torch.device) -> None:
        if any(size % BLOCK for size in part_sizes[:-1]):
            raise ValueError(
                f"FP8_BLOCK_SCALES cannot store projections of {', '.join(map(str, part_sizes))} rows as one weight: "
                f"all but the last need a multiple of {BLOCK} rows; use FP8_PER_TENSOR"
            )
        super().create_weights(weights, part_sizes, device)

    def input_quantization(self, weights: LinearWeights) -> ActivationQuantization:
        return ActivationQuantization(by_group=True)

    def set_weight(self, weights: LinearWeights, rows: slice, values: Tensor) -> None:
        quantized, scale = quantize_weight_blocks(values.to(weights.weight.device))
        weights.weight[rows].copy_(quantized)
        self._scale_rows(weights, rows).copy_(scale)

    def _scale_shape(self, weights: LinearWeights) -> tuple[int, ...]:
        return (-(-weights.out_features // BLOCK), -(-weights.in_features // BLOCK))

    def _scale_rows(self, weights: LinearWeights, rows: slice) -> Tensor:
        assert weights.weight_scale is not None
        return weights.weight_scale[rows.start // BLOCK : -(-rows.stop // BLOCK)]

    def _scale_target(self, weights: LinearWeights, rows: slice) -> CheckpointTarget:
        return copy_target(self._scale_rows(weights, rows))
