"""The projections of a model that take LoRA, as far as their speed goes: sizes and bytes, no weights.

Read off the model's own modules, so any device will do. Used to choose and to measure plans.
"""

from dataclasses import dataclass

from torch import nn

from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_plans import ProjectionShape
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.linear_weights import LinearWeights


@dataclass(frozen=True, slots=True)
class Projection:
    """One weight and the LoRA layer beside it."""

    hf_names: tuple[str, ...]
    """Of the projections that are stored as this one weight."""
    module_types: tuple[LoraModuleType, ...]
    in_features: int
    output_sizes: tuple[int, ...]
    itemsize: int
    """Bytes of a stored weight."""

    @property
    def name(self) -> str:
        """ "q+k+v", "down"."""
        return "+".join(name.removesuffix("_proj") for name in self.hf_names)

    @property
    def shape(self) -> ProjectionShape:
        return ProjectionShape(self.in_features, sum(self.output_sizes), self.itemsize)

    @property
    def weight_bytes(self) -> int:
        return self.in_features * sum(self.output_sizes) * self.itemsize


def find_projections(model: nn.Module) -> list[Projection]:
    """Those that differ, in the order of the model; the embedding and the head are none."""
    modules = dict(model.named_modules())
    found: dict[Projection, None] = {}
    for path, lora in modules.items():
        if not isinstance(lora, LoraLayer):
            continue
        # The layer of a lone projection is its own `lora`; that of a fused one, `qkv_lora`, stands beside `qkv_proj`.
        parent, _, leaf = path.rpartition(".")
        linear = modules[parent if leaf == "lora" else f"{path.removesuffix('_lora')}_proj"]
        if isinstance(linear, LinearWeights):
            itemsize = linear.weight.dtype.itemsize
            found[Projection(lora.hf_names, lora.module_types, lora.in_features, lora.output_sizes, itemsize)] = None
    return list(found)
