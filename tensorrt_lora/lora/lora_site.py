"""Where a model can be adapted, read off the live module tree.

Names come from the modules that really run, not from a table: an adapter that binds to no live module is an error,
never a silent no-op.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.module_types import LoraModuleType


@dataclass(frozen=True, slots=True)
class LoraSite:
    """One adaptable layer, as an adapter's author sees it."""

    layer_idx: int
    module_type: LoraModuleType
    hf_name: str  # "model.layers.0.self_attn.q_proj"
    in_features: int  # of an embedding: the vocabulary
    out_features: int


@dataclass(frozen=True, slots=True)
class PlacedLoraLayer:
    """A `LoraLayer` together with its place in the model."""

    layer_idx: int
    parent_path: str  # "model.layers.0.self_attn": the nearest ancestor that knows its layer index
    layer: LoraLayer

    def sites(self) -> Iterator[LoraSite]:
        layer = self.layer
        for module_type, leaf, out_features in zip(layer.module_types, layer.hf_names, layer.output_sizes, strict=True):
            hf_name = f"{self.parent_path}.{leaf}" if leaf else self.parent_path
            yield LoraSite(self.layer_idx, module_type, hf_name, layer.in_features, out_features)


def find_lora_layers(model: nn.Module) -> list[PlacedLoraLayer]:
    """Every `LoraLayer` of `model`, in module order."""
    modules = dict(model.named_modules())
    placed = []
    for path, module in modules.items():
        if not isinstance(module, LoraLayer):
            continue
        parent_path = path
        while not isinstance(getattr(modules[parent_path], "layer_idx", None), int):
            assert "." in parent_path, f"{path} has no ancestor with a layer_idx"
            parent_path = parent_path.rpartition(".")[0]
        placed.append(PlacedLoraLayer(modules[parent_path].layer_idx, parent_path, module))
    return placed


def find_lora_sites(model: nn.Module) -> dict[str, LoraSite]:
    """Every adaptable layer of `model`, by its Hugging Face module name."""
    return {site.hf_name: site for placed in find_lora_layers(model) for site in placed.sites()}
