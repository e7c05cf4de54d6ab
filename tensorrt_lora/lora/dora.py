"""DoRA's gain: what the magnitude of each output makes of the adapted weight's norm.

Called by `ExtraRowsBuilder` with live base weights. DoRA: weight-decomposed low-rank adaptation, Liu et al. 2024
(arXiv 2402.09353), as PEFT computes it: the norm is that of W + scale * B A over the inputs of each output.
"""

import torch
from torch import Tensor

_BLOCK_VALUES = 1 << 24  # of the weight in float32 at once: 64 MiB


def dora_gain(
    weight: Tensor, a: Tensor, b: Tensor, scale: float, magnitude: Tensor, *, is_embedding: bool = False
) -> Tensor:
    """g - 1 of every output, [out] float32 on the weight's device, where g = magnitude / |row of W + scale * B A|.

    Args:
        weight: [out, in], any float dtype; an embedding's is [vocab, hidden], with the outputs in columns.
        a: [rank, in] on the weight's device.
        b: [rank, out] on the weight's device.
        magnitude: [out] on the weight's device.
    """
    left, right = (a.float(), b.float()) if is_embedding else (b.float(), a.float())
    block_rows = max(1, _BLOCK_VALUES // weight.shape[1])
    squares = []
    for start in range(0, weight.shape[0], block_rows):
        rows = slice(start, start + block_rows)
        merged = torch.addmm(weight[rows].float(), left[:, rows].T, right, alpha=scale).square_()
        squares.append(merged.sum(0 if is_embedding else 1))
    norm = (torch.stack(squares).sum(0) if is_embedding else torch.cat(squares)).sqrt_()
    # A row of zeros gives zeros whatever its gain is.
    return torch.where(norm > 0, magnitude.float() / norm - 1, 0.0)
