"""Elementwise activations of the feed-forward blocks. Called by `GatedMLP` and `MLP`."""

import torch
from torch.nn import functional


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up: [T, 2 * N] (gate, then up) -> [T, N]. Source: Shazeer, "GLU Variants" (2020)."""
    return _silu_and_mul_reference(gate_up)


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """relu(x)^2, any shape. Source: So et al., "Primer" (2021)."""
    return _squared_relu_reference(x)


def _silu_and_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _squared_relu_reference(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x).square()
