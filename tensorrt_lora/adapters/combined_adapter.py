"""Several adapters as one: their pairs one below the other, weights and scales folded into A.

Owns the arithmetic of `WeightedLoRARequests`, which is PEFT's `add_weighted_adapter` with `combination_type="cat"`: the
sum of what the parts add. Called by `AdapterStore` on the loader thread. Makes copies; the parts stay as they are.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.host_weights import HostBlock
from tensorrt_lora.adapters.load_pacer import GiveWay, go_on
from tensorrt_lora.adapters.piecewise import pieces
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights, SiteKey
from tensorrt_lora.lora_request import WeightedLoRARequests

WeightedModule = tuple[LoraModuleWeights, float]


@dataclass(frozen=True, slots=True)
class AdapterCombiner:
    """Combines loaded adapters.

    Attributes:
        max_rank: the engine's `max_lora_rank`; binds on the sum of the parts' ranks.
        pin_memory: page-lock the copies, as for any host weights of the device.
        give_way: called after each piece of work; see `LoadPacer`.
    """

    max_rank: int
    pin_memory: bool = False
    give_way: GiveWay = go_on

    def combine(self, request: WeightedLoRARequests, adapters: Sequence[AdapterWeights]) -> AdapterWeights:
        """The sum of `adapters`, each times its weight in `request`; ranks add up module by module.

        Raises AdapterError where the sum of the ranks is too large, and for parts that are more than pairs: with DoRA
        an adapter is no addend, and PEFT drops biases.
        """
        problems = AdapterProblems(request.name, request.path)
        weighted = [(adapter, weight) for adapter, (_, weight) in zip(adapters, request.parts, strict=True)]
        groups: dict[SiteKey, list[WeightedModule]] = {}
        for adapter, weight in weighted:
            _check_addend(adapter, problems)
            for key, module in adapter.modules.items():
                groups.setdefault(key, []).append((module, weight))
        self._check_ranks(groups, problems)
        problems.check()
        modules = [module for group in groups.values() for module, _ in group]
        dtype = modules[0].a.dtype
        block = HostBlock(sum(m.a.numel() + m.b.numel() for m in modules), dtype=dtype, pin_memory=self.pin_memory)
        combined = {key: _stack(group, block, self.give_way) for key, group in groups.items()}
        if not all(torch.isfinite(module.a).all() for module in combined.values()):
            problems.fail(f"a weight times an adapter is too large for {dtype}; give smaller weights")
        return AdapterWeights(request.name, _version(request, adapters), combined)

    def _check_ranks(self, groups: dict[SiteKey, list[WeightedModule]], problems: AdapterProblems) -> None:
        ranks = [[module.rank for module, _ in group] for group in groups.values()]
        largest = max(ranks, key=sum)
        if sum(largest) > self.max_rank:
            terms = " + ".join(str(rank) for rank in largest)
            problems.add(
                f"the ranks add up to {terms} = {sum(largest)} in one module, above max_lora_rank={self.max_rank}; "
                f"raise it in LoraConfig to {sum(largest)}"
            )


def _check_addend(adapter: AdapterWeights, problems: AdapterProblems) -> None:
    modules = adapter.modules.values()
    if any(module.magnitude is not None for module in modules):
        problems.add(f"adapter {adapter.name!r} has DoRA magnitudes, which cannot be added up; use it alone")
    if any(module.bias is not None or module.base_bias is not None for module in modules):
        problems.add(f"adapter {adapter.name!r} has trained biases, which PEFT does not combine; use it alone")


def _stack(group: list[WeightedModule], block: HostBlock, give_way: GiveWay) -> LoraModuleWeights:
    rank = sum(module.rank for module, _ in group)
    a, b = (block.take(rank, group[0][0].a.shape[1]), block.take(rank, group[0][0].b.shape[1]))
    start = 0
    for module, weight in group:
        rows = slice(start, start + module.rank)
        for to, of in pieces(a[rows], module.a):
            to.copy_(of.float() * (weight * module.scale))  # rounded once
            give_way()
        for to, of in pieces(b[rows], module.b):
            to.copy_(of)
            give_way()
        start = rows.stop
    return LoraModuleWeights(a, b, 1.0)


def _version(request: WeightedLoRARequests, adapters: Sequence[AdapterWeights]) -> str:
    parts = zip(request.parts, adapters, strict=True)
    text = "\n".join(f"{float(weight)!r} {one.lora_int_id} {adapter.version}" for (one, weight), adapter in parts)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
