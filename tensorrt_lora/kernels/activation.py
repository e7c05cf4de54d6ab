"""Elementwise activations of the feed-forward blocks. Called by `GatedMLP` and `MLP`."""

import torch
from torch.nn import functional

from tensorrt_lora.kernels.flashinfer_dispatch import use_flashinfer


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up: [T, 2 * N] (gate, then up) -> [T, N]. Source: Shazeer, "GLU Variants" (2020).

    The reference rounds silu(gate) to the input's dtype first; FlashInfer rounds the product only.
    """
    # Seen as 2 * T rows of N, gate and up must each begin where FlashInfer's vectors do.
    if use_flashinfer(gate_up) and use_flashinfer(gate_up.view(-1, gate_up.shape[1] // 2)):
        return _silu_and_mul_flashinfer(gate_up)
    return silu_and_mul_reference(gate_up)


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """relu(x)^2, any shape. Source: So et al., "Primer" (2021)."""
    return functional.relu(x).square()


def silu_and_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """The same in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _silu_and_mul_flashinfer(gate_up: torch.Tensor) -> torch.Tensor:
    import flashinfer

    out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
    flashinfer.silu_and_mul(gate_up, out=out)
    return out
