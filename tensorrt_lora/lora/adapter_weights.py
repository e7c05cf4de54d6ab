"""The weights of one adapter on the host, checked and bound to the sites of a model.

Made by `adapters/` from a checkpoint, copied into a slot by `CudaGraphLoraParams`. Immutable once made: a slot takes a
copy, so reloading an adapter can never scale or shift it twice.
"""

from dataclasses import dataclass

import torch

from tensorrt_lora.kernels.lora_batch import pages_for_rows
from tensorrt_lora.lora.module_types import LoraModuleType

SiteKey = tuple[int, LoraModuleType]
"""(layer index, module type): one adapted layer of a model."""


@dataclass(frozen=True, slots=True)
class LoraModuleWeights:
    """What one module makes of its base layer y = W x + b0.

    Plain LoRA adds `delta = scale * (x @ a.T) @ b`. With a magnitude (DoRA, Liu et al. 2024) the output is
    `g * (W x + delta) + b0`, where g = magnitude / row norms of (W + scale * b.T @ a). `base_bias` takes the place of
    b0, and `bias` is added to the whole.
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

    @property
    def max_extra_rows(self) -> int:
        """How many rows behind the rank rows a slot keeps for bias and magnitude; see `LoraTables.extras`.

        An upper bound: DoRA takes a bias row only on a base layer that has a bias, which is not known here.
        """
        if self.magnitude is not None:
            return 2
        return 0 if self.bias is None and self.base_bias is None else 1

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that is there; the parts of a fused projection may share their A."""
        optional = (self.bias, self.base_bias, self.magnitude)
        return (self.a, self.b, *(tensor for tensor in optional if tensor is not None))


@dataclass(frozen=True, eq=False)
class AdapterWeights:
    """All modules of one adapter.

    Equal to itself alone (`version` compares contents), and able to be the key of a weak dictionary.
    """

    name: str
    version: str  # digest of the content: equal digests mean equal outputs
    modules: dict[SiteKey, LoraModuleWeights]

    @property
    def max_rank(self) -> int:
        return max(module.rank for module in self.modules.values())

    @property
    def num_pages(self) -> int:
        """Pages of `RANK_PAGE` rows that a slot needs for this adapter."""
        return pages_for_rows(max(module.rank + module.max_extra_rows for module in self.modules.values()))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for module in self.modules.values() for tensor in module.tensors)
