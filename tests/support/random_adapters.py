"""Adapters with random weights, made straight for a model's sites: no files in between."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.lora_site import LoraSite


@dataclass(frozen=True)
class RandomAdapter:
    """Fits the engine's `LoraAdapter`."""

    key: AdapterKey
    weights: AdapterWeights

    @property
    def num_pages(self) -> int:
        return self.weights.num_pages


def random_adapter(
    sites: Mapping[str, LoraSite],
    adapter_id: int,
    *,
    rank: int | Callable[[LoraSite], int],
    dtype: torch.dtype = torch.bfloat16,
    strength: float = 0.5,
    bias: bool = False,
    base_bias: bool = False,
    magnitude: bool = False,
) -> RandomAdapter:
    """An adapter on every site whose rank is not 0; its delta is about `strength` times the size of x.

    Weights depend on the id alone, not on the dtype: the same adapter in float32 is exact where bfloat16 is. On request
    each module has a bias, a bias in place of the base layer's, and a magnitude for base rows of norm 1.
    """
    generator = torch.Generator().manual_seed(1000 + adapter_id)
    modules = {}
    for site in sites.values():
        site_rank = rank(site) if callable(rank) else rank
        if site_rank == 0:
            continue
        a = torch.randn(site_rank, site.in_features, generator=generator) * site.in_features**-0.5
        b = torch.randn(site_rank, site.out_features, generator=generator) * site_rank**-0.5
        added, replaced, shift = torch.randn(3, site.out_features, generator=generator) * 0.2
        modules[site.layer_idx, site.module_type] = LoraModuleWeights(
            a.bfloat16().to(dtype),
            b.bfloat16().to(dtype),
            scale=strength * (1 + adapter_id % 3),
            bias=added.bfloat16().to(dtype) if bias else None,
            base_bias=replaced.bfloat16().to(dtype) if base_bias else None,
            magnitude=1 + shift if magnitude else None,
        )
    weights = AdapterWeights(f"random-{adapter_id}", f"random-{adapter_id}", modules)
    return RandomAdapter(AdapterKey(adapter_id, weights.version), weights)
