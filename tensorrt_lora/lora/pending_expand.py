"""What a base output lacks: made by `LoraLayer.forward_deferred` for the op that reads this output next."""

from dataclasses import dataclass

import torch

from tensorrt_lora.kernels.lora_batch import LoraBatch, LoraTables


@dataclass(frozen=True, slots=True)
class PendingExpand:
    """h @ B, not yet added."""

    h: torch.Tensor
    """[modules, T, max_rank] in the output's dtype, scaled, from `linear_and_shrink`; or [splits, modules, T, max_rank]
    float32 from `lora_shrink`."""
    tables: LoraTables
    batch: LoraBatch
