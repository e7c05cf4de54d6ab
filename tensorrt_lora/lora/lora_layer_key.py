"""How the slot tables name a `LoraLayer`, and what they must know of it."""

from dataclasses import dataclass
from typing import NamedTuple

from tensorrt_lora.lora.module_types import LoraModuleType


class LoraLayerKey(NamedTuple):
    """A `LoraLayer` within the model: the key of its slot tables."""

    layer_idx: int
    module_ids: tuple[LoraModuleType, ...]


@dataclass(frozen=True, slots=True)
class LoraLayerShape:
    """Input width and output widths (in module order) of a `LoraLayer`."""

    in_features: int
    output_sizes: tuple[int, ...]

    @property
    def values_per_rank(self) -> int:
        """Elements of A and B together that one row of rank takes in this layer's pools."""
        return len(self.output_sizes) * self.in_features + sum(self.output_sizes)
