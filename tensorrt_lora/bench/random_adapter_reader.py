"""Adapters with random weights for every site of a model, without files.

Takes the place of `AdapterReader` in an engine with dummy weights. Knows no checkpoint format.
"""

from collections.abc import Mapping, Sequence

import torch

from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora_request import LoRARequest

_EFFECT = 0.5  # standard deviation of a delta, where the input's is 1
_STRIDE = 8  # values between the weights of one adapter and those of the next


class RandomAdapterReader:
    """Makes an adapter out of its id: all sites, one rank per adapter.

    All weights of all adapters are views into one block of normal values, each adapter's shifted against the
    others': hundreds of adapters take the host memory of one projection. On the device each has its own copy.

    Args:
        sites: the model's, by name.
        num_adapters: ids are below this.
        ranks: of the adapters in turn, starting again after the last; the same for every module.
        dtype: the model's.
        pin_memory: as for any host weights of the device.
    """

    def __init__(
        self,
        sites: Mapping[str, LoraSite],
        *,
        num_adapters: int,
        ranks: Sequence[int],
        dtype: torch.dtype,
        pin_memory: bool,
        seed: int = 0,
    ) -> None:
        self._sites = list(sites.values())
        self._ranks = tuple(ranks)
        widest = max(max(site.in_features, site.out_features) for site in self._sites)
        shifts = num_adapters + 2 * len(self._sites)
        values = torch.randn(
            widest * max(ranks) + shifts * _STRIDE, generator=torch.Generator().manual_seed(seed), dtype=torch.float32
        ).to(dtype)
        self._block = values.pin_memory() if pin_memory else values

    def rank(self, adapter: int) -> int:
        """Rank of the adapter of this id."""
        return self._ranks[adapter % len(self._ranks)]

    def read(self, request: LoRARequest) -> AdapterWeights:
        """The adapter of the request's id; its path is not looked at."""
        rank = self.rank(request.lora_int_id)
        modules = {}
        for index, site in enumerate(self._sites):
            shift = request.lora_int_id + 2 * index
            modules[site.layer_idx, site.module_type] = LoraModuleWeights(
                a=self._rows(shift, rank, site.in_features),
                b=self._rows(shift + 1, rank, site.out_features),
                scale=_EFFECT / (site.in_features * rank) ** 0.5,
            )
        return AdapterWeights(request.lora_name, request.lora_name, modules)

    def _rows(self, shift: int, rank: int, width: int) -> torch.Tensor:
        """[rank, width] of the block, contiguous."""
        start = shift * _STRIDE
        return self._block[start : start + rank * width].view(rank, width)
