"""What a base output lacks: made by `LoraLayer.forward_deferred` for the op that reads this output next."""

from dataclasses import dataclass

import torch

from tensorrt_lora.kernels.lora_batch import LoraBatch, LoraTables


@dataclass(frozen=True, slots=True)
class PendingExpand:
    """h @ B, not yet added; `linear_and_shrink` says what h is."""

    h: torch.Tensor  # [modules, T, max_rank], scaled, in the output's dtype
    tables: LoraTables
    batch: LoraBatch
