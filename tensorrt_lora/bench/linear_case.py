"""One base projection at one number of tokens, and the ways to compute it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.kernels.fp8_quantize import quantize_per_group, quantize_per_token
from tensorrt_lora.kernels.fp8_weight import dequantize_weight, quantize_weight, quantize_weight_blocks
from tensorrt_lora.kernels.linear import linear
from tensorrt_lora.kernels.linear_weight import LinearWeight, tile_counters
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.streamed_linear import streamed_linear_triton
from tensorrt_lora.kernels.streamed_linear_config import StreamedLinearConfig, streamed_linear_config

_ROTATED_BYTES = 400_000_000  # of weights, several times the second-level cache
_FEWEST_COPIES = 4


Stored = Literal["bf16", "rows", "blocks"]
"""How a weight is stored: unquantised, or float8 with a scale per row or per block."""

ONE_SCALE = "cuBLAS, no scales"
"""A candidate that leaves the scales out: what the bare product costs."""


@dataclass(frozen=True, slots=True)
class LinearShape:
    name: str
    out_features: int
    in_features: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to compute the projection: `call(i)` does it with the i-th copy of the weight."""

    name: str
    call: Callable[[int], Tensor]
    weight_bytes: int


def projection_shapes(preset: str) -> list[LinearShape]:
    """The four weights of one decoder layer. Raises ValueError for an unknown preset."""
    config = find_preset(preset).config
    hidden, intermediate, heads, kv_heads, head_dim = (
        int(str(config[name]))
        for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    return [
        LinearShape("qkv", (heads + 2 * kv_heads) * head_dim, hidden),
        LinearShape("o", hidden, heads * head_dim),
        LinearShape("gate_up", 2 * intermediate, hidden),
        LinearShape("down", hidden, intermediate),
    ]


class LinearCase:
    """Random weights of one shape, in enough copies to defeat the cache, and an input of `tokens` rows."""

    def __init__(self, shape: LinearShape, device: torch.device) -> None:
        self.shape = shape
        self._size = (shape.out_features, shape.in_features)
        self.copies = max(_FEWEST_COPIES, -(-_ROTATED_BYTES // (shape.out_features * shape.in_features)))
        self._device = device
        empty = torch.empty(self._size, dtype=torch.bfloat16, device=device)
        values = [torch.randn_like(empty) for _ in range(self.copies)]
        counters = [tile_counters(shape.out_features, device) for _ in range(self.copies)]
        by_tensor = [quantize_weight(weight) for weight in values]
        rows = [(weight, scale.expand(shape.out_features).contiguous()) for weight, scale in by_tensor]
        blocks = [quantize_weight_blocks(weight) for weight in values]
        self._weights: dict[Stored, list[LinearWeight]] = {
            "bf16": _weights([(weight, None) for weight in values], counters),
            "rows": _weights(rows, counters),
            "blocks": _weights(blocks, counters),
        }

    def with_tokens(self, tokens: int) -> None:
        """Draw an input of so many rows for the calls that follow."""
        self.tokens = tokens
        self.x = torch.randn(tokens, self.shape.in_features, device=self._device).bfloat16()
        self._by_token, self._by_group = quantize_per_token(self.x), quantize_per_group(self.x)
        first = self._weights["rows"][0]
        assert first.scale is not None
        # [tokens, out] float32: the first copy of the weight, dequantised, times the input as it is.
        self.expected = self.x.float() @ dequantize_weight(first.values, first.scale).t()

    def fixed_candidates(self) -> Iterator[Candidate]:
        """Those without a configuration. With "quantise", the input's quantisation is timed too."""
        fp8_bytes = self.shape.out_features * self.shape.in_features
        yield Candidate(
            "cuBLAS, bf16", lambda i: functional.linear(self.x, self._weights["bf16"][i].values), 2 * fp8_bytes
        )
        one = torch.ones((), device=self._device)
        x_scale = self._by_token.scale
        yield Candidate(ONE_SCALE, lambda i: self._scaled_mm(i, one, one), fp8_bytes)
        yield Candidate("cuBLAS, rows", lambda i: self._scaled_mm(i, x_scale, self._row_scales(i)), fp8_bytes)
        yield Candidate(
            "quantise, linear, rows",
            lambda i: linear(quantize_per_token(self.x), self._weights["rows"][i], torch.bfloat16),
            fp8_bytes,
        )
        yield Candidate(
            "quantise, linear, blocks",
            lambda i: linear(quantize_per_group(self.x), self._weights["blocks"][i], torch.bfloat16),
            fp8_bytes,
        )

    def triton_candidate(self, config: StreamedLinearConfig, stored: Stored) -> Candidate:
        """The kernel in one configuration."""
        weights = self._weights[stored]
        x = {"bf16": self.x, "rows": self._by_token, "blocks": self._by_group}[stored]
        assert isinstance(x, Tensor | QuantizedActivation)
        num_bytes = weights[0].values.nbytes
        return Candidate(
            f"streamed, {stored}", lambda i: streamed_linear_triton(x, weights[i], torch.bfloat16, config), num_bytes
        )

    def default_config(self, stored: Stored) -> StreamedLinearConfig:
        """What the engine takes, where it takes the kernel."""
        itemsize = 2 if stored == "bf16" else 1
        return streamed_linear_config(self.tokens, *self._size, itemsize=itemsize, block_scales=stored == "blocks")

    def _row_scales(self, i: int) -> Tensor:
        scale = self._weights["rows"][i].scale
        assert scale is not None
        return scale[None, :]

    def _scaled_mm(self, i: int, x_scale: Tensor, weight_scale: Tensor) -> Tensor:
        return torch._scaled_mm(
            self._by_token.values,
            self._weights["rows"][i].values.t(),
            scale_a=x_scale,
            scale_b=weight_scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )


def _weights(stored: Sequence[tuple[Tensor, Tensor | None]], counters: list[Tensor]) -> list[LinearWeight]:
    return [
        LinearWeight(weight, scale=scale, counters=counter)
        for (weight, scale), counter in zip(stored, counters, strict=True)
    ]
