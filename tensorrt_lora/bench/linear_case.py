"""One base projection at one number of tokens, and the ways to compute it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.kernels.fp8_linear import fp8_linear, fp8_linear_triton, tile_counters
from tensorrt_lora.kernels.fp8_linear_config import Fp8LinearConfig, fp8_linear_config
from tensorrt_lora.kernels.fp8_quantize import quantize_per_group, quantize_per_token
from tensorrt_lora.kernels.fp8_weight import dequantize_weight, quantize_weight, quantize_weight_blocks

_ROTATED_BYTES = 400_000_000  # of weights, several times the second-level cache
_FEWEST_COPIES = 4


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
        self._bf16 = [torch.randn_like(empty) for _ in range(self.copies)]
        by_tensor = [quantize_weight(weight) for weight in self._bf16]
        by_block = [quantize_weight_blocks(weight) for weight in self._bf16]
        self._weights = [values for values, _ in by_tensor]
        self._row_scales = [scale.expand(shape.out_features).contiguous() for _, scale in by_tensor]
        self._block_weights = [values for values, _ in by_block]
        self._block_scales = [scale for _, scale in by_block]
        self._counters = [tile_counters(shape.out_features, device) for _ in range(self.copies)]

    def with_tokens(self, tokens: int) -> None:
        """Draw an input of so many rows for the calls that follow."""
        self.tokens = tokens
        self.x = torch.randn(tokens, self.shape.in_features, device=self._device).bfloat16()
        self._by_token = quantize_per_token(self.x)
        self._by_group = quantize_per_group(self.x)
        # [tokens, out] float32: the first copy of the weight, dequantised, times the input as it is.
        self.expected = self.x.float() @ dequantize_weight(self._weights[0], self._row_scales[0]).t()

    def fixed_candidates(self) -> Iterator[Candidate]:
        """Those without a configuration. With "quantise", the input's quantisation is timed too."""
        fp8_bytes = self.shape.out_features * self.shape.in_features
        yield Candidate("bf16", lambda i: functional.linear(self.x, self._bf16[i]), 2 * fp8_bytes)
        one = torch.ones((), device=self._device)
        yield Candidate("cuBLAS, one scale", lambda i: self._scaled_mm(i, one, self._row_scales[i][0]), fp8_bytes)
        yield Candidate(
            "cuBLAS, one scale, then rows",
            lambda i: self._scaled_mm(i, one, self._row_scales[i][0]).mul_(self._by_token.scale),
            fp8_bytes,
        )
        yield Candidate(
            "cuBLAS, rows", lambda i: self._scaled_mm(i, self._by_token.scale, self._row_scales[i][None, :]), fp8_bytes
        )
        yield Candidate("cuBLAS, blocks", self._cublas_blocks, fp8_bytes)
        yield Candidate("quantise, fp8_linear, rows", self._engine_rows, fp8_bytes)
        yield Candidate("quantise, fp8_linear, blocks", self._engine_blocks, fp8_bytes)

    def triton_candidate(self, config: Fp8LinearConfig, *, block_scales: bool) -> Candidate:
        """The kernel in one configuration."""
        weights, scales, x = (
            (self._block_weights, self._block_scales, self._by_group)
            if block_scales
            else (self._weights, self._row_scales, self._by_token)
        )

        def call(i: int) -> Tensor:
            return fp8_linear_triton(x, weights[i], scales[i], None, torch.bfloat16, self._counters[i], config)

        name = f"Triton, {'blocks' if block_scales else 'rows'}"
        return Candidate(name, call, self.shape.out_features * self.shape.in_features)

    def default_config(self, *, block_scales: bool) -> Fp8LinearConfig:
        """What the engine takes, where it takes the kernel."""
        return fp8_linear_config(self.tokens, *self._size, block_scales=block_scales)

    def _scaled_mm(self, i: int, x_scale: Tensor, weight_scale: Tensor) -> Tensor:
        return torch._scaled_mm(
            self._by_token.values,
            self._weights[i].t(),
            scale_a=x_scale,
            scale_b=weight_scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    def _cublas_blocks(self, i: int) -> Tensor:
        return torch._scaled_mm(
            self._by_group.values,
            self._block_weights[i].t(),
            scale_a=self._by_group.scale,
            scale_b=self._block_scales[i].t(),
            out_dtype=torch.bfloat16,
        )

    def _engine_rows(self, i: int) -> Tensor:
        x = quantize_per_token(self.x)
        return fp8_linear(x, self._weights[i], self._row_scales[i], None, torch.bfloat16, self._counters[i])

    def _engine_blocks(self, i: int) -> Tensor:
        x = quantize_per_group(self.x)
        return fp8_linear(x, self._block_weights[i], self._block_scales[i], None, torch.bfloat16, self._counters[i])
