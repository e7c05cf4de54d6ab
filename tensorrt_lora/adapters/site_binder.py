"""Binds the tensors of an adapter to the sites of the running model: every one of them, or none.

Owns the checks between file, configuration and model. Called by `read_peft_checkpoint`. Knows no files.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.peft_config import PeftConfig
from tensorrt_lora.adapters.peft_keys import PeftKey, TensorRole, explain_other, parse_key
from tensorrt_lora.adapters.site_index import SiteIndex
from tensorrt_lora.lora.lora_site import LoraSite

_DTYPES = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
}


@dataclass(slots=True)
class BoundModule:
    """One module of the file with the sites it adapts; several when it is a fused projection."""

    sites: tuple[LoraSite, ...]  # in the order of lora_b's rows
    lora_a: torch.Tensor  # [rank, in], as in the file
    lora_b: torch.Tensor  # [sum(out), rank], as in the file
    a_key: str
    b_key: str
    scale: float


@dataclass(slots=True)
class Binding:
    """What came of one adapter's tensors."""

    modules: list[BoundModule]
    notes: list[str]  # for the log: what was accepted though it may not be what the user thinks


class SiteBinder:
    """Binds one adapter; whatever does not fit goes to `problems`."""

    def __init__(self, index: SiteIndex, config: PeftConfig, max_rank: int, problems: AdapterProblems) -> None:
        self._index = index
        self._config = config
        self._max_rank = max_rank
        self._problems = problems
        self._notes: list[str] = []
        self._renamed: list[PeftKey] = []

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> Binding:
        """Bind every tensor. Raises AdapterError listing all that cannot be applied exactly as PEFT would."""
        keys = self._lora_keys(sorted(tensors))
        modules = []
        for halves in self._pair(keys).values():
            bound = self._bind_module(halves, tensors)
            if bound is not None:
                modules.append(bound)
        self._check_overlap(modules)
        if not keys:
            self._problems.add("no tensor in the file is a lora_A or lora_B, so nothing would be applied")
        self._problems.check()
        if self._renamed:
            spelling = self._renamed[0].key
            self._notes.append(f"read {len(self._renamed)} names in another spelling than PEFT's, like {spelling}")
        self._note_absent_targets({key.module for key in keys}, modules)
        return Binding(modules, self._notes)

    def _lora_keys(self, names: list[str]) -> list[PeftKey]:
        """The LoRA tensors among `names`; all others are reported, grouped by what is wrong with them."""
        keys = [parse_key(name) for name in names]
        strangers: dict[str, list[str]] = defaultdict(list)
        for key in keys:
            if key.role is TensorRole.OTHER:
                strangers[explain_other(key.key)].append(key.key)
        for reason, offenders in strangers.items():
            self._problems.add(f"{_tensors(offenders)}: {reason}")
        buffers = [key.key for key in keys if key.role is TensorRole.BUFFER]
        if buffers:
            self._notes.append(f"ignored buffers of the base model: {', '.join(buffers)}")
        lora = [key for key in keys if key.role in (TensorRole.LORA_A, TensorRole.LORA_B)]
        names_inside = sorted({key.adapter_name for key in lora if key.adapter_name is not None})
        if len(names_inside) > 1:
            self._problems.add(f"the file holds several adapters, {', '.join(names_inside)}; save them one by one")
        return lora

    def _pair(self, keys: list[PeftKey]) -> dict[str, dict[TensorRole, PeftKey]]:
        """A and B of each module, by the module's path."""
        pairs: dict[str, dict[TensorRole, PeftKey]] = defaultdict(dict)
        for key in keys:
            other = pairs[key.path].setdefault(key.role, key)
            if other is not key:
                self._problems.add(f"tensors {other.key} and {key.key} are for the same module; keep one")
        return pairs

    def _bind_module(
        self, halves: dict[TensorRole, PeftKey], tensors: Mapping[str, torch.Tensor]
    ) -> BoundModule | None:
        some_key = next(iter(halves.values()))
        sites = self._index.resolve(some_key.path)
        if not sites:
            names = [key.key for key in halves.values()]
            self._problems.add(f"{_tensors(names)}: {self._index.explain(some_key.path)}")
            return None
        module = some_key.module
        live_name = sites[0].hf_name if len(sites) == 1 else module
        self._renamed += [key for key in halves.values() if not key.is_plain or key.module != live_name]
        if not (self._config.targets(module) or self._config.targets(live_name)):
            self._problems.add(
                f"{module} has tensors but adapter_config.json does not target it, so PEFT would drop them; "
                "add it to target_modules or remove its tensors"
            )
        for role in (TensorRole.LORA_A, TensorRole.LORA_B):
            if role not in halves:
                self._problems.add(f"{module}: {role.value} is missing beside {some_key.key}; save the adapter again")
                return None
        a_key, b_key = halves[TensorRole.LORA_A], halves[TensorRole.LORA_B]
        bound = BoundModule(
            sites, tensors[a_key.key], tensors[b_key.key], a_key.key, b_key.key, self._config.scale_of(module)
        )
        self._check_shapes(bound, module)
        return bound

    def _check_shapes(self, bound: BoundModule, module: str) -> None:
        rank = self._config.rank_of(module)
        width, height = bound.sites[0].in_features, sum(site.out_features for site in bound.sites)
        self._check_tensor(bound.a_key, bound.lora_a, [rank, width], rank_axis=0)
        self._check_tensor(bound.b_key, bound.lora_b, [height, rank], rank_axis=1)
        if rank > self._max_rank:
            limit = f"max_lora_rank={self._max_rank}"
            self._problems.add(f"{module}: rank {rank} is above {limit}; raise it in LoraConfig to {rank}")
        if bound.scale == 0.0:
            self._notes.append(f"{module} has lora_alpha 0 and adds nothing")

    def _check_tensor(self, key: str, tensor: torch.Tensor, wanted: list[int], *, rank_axis: int) -> None:
        got = list(tensor.shape)
        if tensor.dtype not in _DTYPES:
            self._problems.add(f"tensor {key}: dtype {tensor.dtype} is not served; save it in a floating point type")
        if got == wanted:
            return
        if tensor.numel() == 0:
            fix = "it is empty: gather sharded weights (ZeRO-3, FSDP) before saving"
        elif len(got) == 2 and got[1 - rank_axis] == wanted[1 - rank_axis]:
            fix = f"the configuration gives this module rank {wanted[rank_axis]}; correct r or rank_pattern"
        else:
            base = f" ({self._config.base_model})" if self._config.base_model else ""
            fix = f"the adapter was trained on another base model{base}; serve it on that one"
        self._problems.add(f"tensor {key}: got {got}, wanted {wanted}; {fix}")

    def _check_overlap(self, modules: list[BoundModule]) -> None:
        owners: dict[str, str] = {}
        for bound in modules:
            for site in bound.sites:
                owner = owners.setdefault(site.hf_name, bound.a_key)
                if owner != bound.a_key:
                    self._problems.add(f"tensors {owner} and {bound.a_key} both adapt {site.hf_name}; keep one")

    def _note_absent_targets(self, trained: set[str], modules: list[BoundModule]) -> None:
        """PEFT leaves a target without tensors at zero. So it is here, and the log says so."""
        unused = self._config.unused_targets(trained)
        if unused:
            self._notes.append(f"target_modules without any tensor: {', '.join(unused)}")
        bound = {site.hf_name for module in modules for site in module.sites}
        absent = [name for name in self._index.hf_names if name not in bound and self._config.targets(name)]
        if absent:
            self._notes.append(
                f"{len(absent)} targeted modules have no tensors and stay as in the base, like {absent[0]}"
            )


def _tensors(keys: list[str]) -> str:
    return f"tensor{'s' if len(keys) > 1 else ''} {', '.join(keys)}"
