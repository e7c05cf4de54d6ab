"""The whole output of a module that may leave a LoRA delta to the op behind it."""

import torch

from tensorrt_lora.kernels.lora_add import lora_add
from tensorrt_lora.kernels.lora_delta import LoraDelta


def completed(output: torch.Tensor, delta: LoraDelta | None) -> torch.Tensor:
    """`output` [T, out], to which the delta is added in place."""
    if delta is not None:
        lora_add(delta.values, delta.tables, delta.batch, output)
    return output
