"""The weights of one adapter on the host, checked and bound to the sites of a model.

Made by `adapters/` from a checkpoint, copied into a slot by `CudaGraphLoraParams`. Immutable once made: a slot takes a
copy, so reloading an adapter can never scale or shift it twice.
"""

from dataclasses import dataclass

import torch

from tensorrt_lora.kernels.lora_batch import RANK_PAGE
from tensorrt_lora.lora.module_types import LoraModuleType

SiteKey = tuple[int, LoraModuleType]
"""(layer index, module type): one adapted linear layer of a model."""


@dataclass(frozen=True, slots=True)
class LoraModuleWeights:
    """What one module adds to the output y = x W^T + b0 of its base layer.

    Plain LoRA adds `delta = scale * (x @ a.T) @ b`. With a magnitude (DoRA) the output is g * (y - b0 + delta) + b0,
    where g = magnitude / row norms of (W + scale * b.T @ a). `base_bias` then takes the place of b0, and `bias` is
    added.
    """

    a: torch.Tensor  # [rank, in] (an embedding's: [rank, vocab]), model dtype; rank 0 where only a bias is trained
    b: torch.Tensor  # [rank, out], model dtype: PEFT's lora_B transposed, so that both are rows of rank
    scale: float
    bias: torch.Tensor | None = None  # [out] model dtype, added as it is: PEFT's scale * lora_B.bias
    base_bias: torch.Tensor | None = None  # [out] model dtype: PEFT's bias="all" and "lora_only"
    magnitude: torch.Tensor | None = None  # [out] float32: DoRA's m

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """All modules of one adapter."""

    name: str
    version: str  # digest of the content: equal digests mean equal outputs
    modules: dict[SiteKey, LoraModuleWeights]

    @property
    def max_rank(self) -> int:
        return max(module.rank for module in self.modules.values())

    @property
    def num_pages(self) -> int:
        """Pages of `RANK_PAGE` rank rows that a slot needs for this adapter."""
        return -(-self.max_rank // RANK_PAGE)

    @property
    def nbytes(self) -> int:
        return sum(module.a.nbytes + module.b.nbytes for module in self.modules.values())
