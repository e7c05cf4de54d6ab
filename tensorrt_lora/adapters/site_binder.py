"""Binds the tensors of an adapter to the sites of the running model: every one of them, or none.

Owns what names alone decide: which tensors belong together, which module they are for, and what nobody takes. Called by
`read_peft_checkpoint`. Knows no files.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.base_parameters import BaseParameters
from tensorrt_lora.adapters.bound_module import Binding, BoundModule
from tensorrt_lora.adapters.foreign_names import explain_format, explain_other
from tensorrt_lora.adapters.module_binder import ModuleBinder, ModuleParts
from tensorrt_lora.adapters.name_matcher import SlowPatternError
from tensorrt_lora.adapters.peft_config import PeftConfig
from tensorrt_lora.adapters.peft_keys import PeftKey, TensorRole, parse_key
from tensorrt_lora.adapters.site_index import SiteIndex

_EMBEDDING, _HEAD = "embed_tokens", "lm_head"
_MAX_TENSORS = 100_000


class SiteBinder:
    """Binds one adapter; whatever does not fit goes to `problems`, for the caller to raise.

    Args:
        index: the model's sites.
        base_parameters: the model's own.
    """

    def __init__(
        self,
        index: SiteIndex,
        config: PeftConfig,
        max_rank: int,
        problems: AdapterProblems,
        base_parameters: BaseParameters,
    ) -> None:
        self._index = index
        self._config = config
        self._problems = problems
        self._modules = ModuleBinder(config, max_rank, base_parameters, problems)
        self._base_parameters = base_parameters
        self._notes: list[str] = []
        self._not_compared: list[str] = []
        self._renamed: list[PeftKey] = []
        self._unnamed: dict[str, list[str]] = {}  # tensors by module, of those that the engine has to be told

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> Binding:
        """Bind every tensor, as far as that can be done exactly as PEFT would; the rest is in `problems`.

        Raises AdapterError where a pattern of the configuration takes too long.
        """
        try:
            return self._bind(tensors)
        except SlowPatternError as error:
            self._problems.fail(f"adapter_config.json: {error}")

    def _bind(self, tensors: Mapping[str, torch.Tensor]) -> Binding:
        keys = self._known_keys(sorted(tensors))
        copies = [key for key in keys if key.role is TensorRole.BASE_WEIGHT]
        self._check_copies(copies, tensors)
        lora = [key for key in keys if key.role is not TensorRole.BASE_WEIGHT]
        groups = self._group(lora)
        tied = self._is_head_tied(lora)
        modules = []
        for parts in groups.values():
            bound = self._bind_module(parts, tensors, tied)
            if bound is not None:
                modules.append(bound)
        self._modules.report()
        if self._unnamed:
            names = [key for keys in self._unnamed.values() for key in keys]
            self._problems.add(f"{_tensors(names)}: {self._index.explain_unnamed(list(self._unnamed))}")
        self._check_overlap(modules)
        if tied:
            self._check_tied(modules)
        if not any(key.is_lora for key in lora):
            self._problems.add("no tensor in the file is a lora_A or lora_B, so nothing would be applied")
        self._note_names(modules)
        return Binding(modules, [*self._notes, *self._modules.notes], self._not_compared)

    def _known_keys(self, names: list[str]) -> list[PeftKey]:
        """The tensors that have a meaning; all others are reported, grouped by what is wrong with them."""
        if len(names) > _MAX_TENSORS:
            self._problems.fail(f"the file holds {len(names)} tensors, more than {_MAX_TENSORS}; this is no adapter")
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
        names_inside = sorted({key.adapter_name for key in keys if key.adapter_name is not None})
        if len(names_inside) > 1:
            self._problems.add(f"the file holds several adapters, {', '.join(names_inside)}; save them one by one")
        return [key for key in keys if key.role not in (TensorRole.OTHER, TensorRole.BUFFER)]

    def _check_copies(self, copies: list[PeftKey], tensors: Mapping[str, torch.Tensor]) -> None:
        for key in copies:
            problem = self._base_parameters.copy_problem(key.key, key.path, tensors[key.key])
            if problem is not None:
                self._problems.add(problem)
            elif self._base_parameters.can_compare(key.path):
                self._notes.append(f"ignored {key.key}, a copy of the model's own")
            else:
                self._notes.append(f"ignored {key.key}, taken for a copy of the model's own without comparing them")
                self._not_compared.append(key.key)

    def _group(self, keys: list[PeftKey]) -> dict[str, dict[TensorRole, PeftKey]]:
        """The tensors of each module, by the module's path."""
        groups: dict[str, dict[TensorRole, PeftKey]] = defaultdict(dict)
        for key in keys:
            other = groups[key.path].setdefault(key.role, key)
            if other is not key:
                self._problems.add(f"tensors {other.key} and {key.key} are for the same module; keep one")
        return groups

    def _is_head_tied(self, keys: list[PeftKey]) -> bool:
        """Whether PEFT adapts the head because the embedding is a target, with the embedding's matrices swapped."""
        return self._config.ensure_weight_tying and any(
            key.path == _EMBEDDING and self._config.targets(key.module) for key in keys
        )

    def _bind_module(
        self, parts: ModuleParts, tensors: Mapping[str, torch.Tensor], head_is_tied: bool
    ) -> BoundModule | None:
        some_key = next(iter(parts.values()))
        module, path = some_key.module, some_key.path
        sites = self._index.resolve(path)
        if not sites:
            names = [key.key for key in parts.values()]
            if self._index.must_be_named(path):
                self._unnamed[path] = names
                return None
            reason = explain_format(some_key.key) or self._index.explain(path)
            self._problems.add(f"{_tensors(names)}: {reason}")
            return None
        live_name = sites[0].hf_name if len(sites) == 1 else module
        self._renamed += [key for key in parts.values() if not key.is_plain or key.module != live_name]
        is_trained = any(key.role is not TensorRole.BASE_BIAS for key in parts.values())
        is_targeted = self._config.targets(module) or self._config.targets(live_name)
        if is_trained and not is_targeted and not (head_is_tied and path == _HEAD):
            self._problems.add(
                f"{module} has tensors but adapter_config.json does not target it, so PEFT would drop them; "
                "add it to target_modules or remove its tensors"
            )
        return self._modules.bind(parts, sites, tensors)

    def _check_overlap(self, modules: list[BoundModule]) -> None:
        owners: dict[str, str] = {}
        for bound in modules:
            for site in bound.sites:
                key = bound.tensors[0].key
                owner = owners.setdefault(site.hf_name, key)
                if owner != key:
                    self._problems.add(f"tensors {owner} and {key} both adapt {site.hf_name}; keep one")

    def _check_tied(self, modules: list[BoundModule]) -> None:
        """PEFT keeps one pair for both, so a file with two different ones is no file of PEFT's."""
        by_leaf = {bound.module.rpartition(".")[2]: bound for bound in modules}
        embedding, head = by_leaf.get(_EMBEDDING), by_leaf.get(_HEAD)
        if embedding is None or head is None:
            return
        for ours, theirs in ((head.lora_a, embedding.lora_b), (head.lora_b, embedding.lora_a)):
            if ours and theirs and not torch.equal(ours.values.float(), theirs.values.float().mT):
                self._problems.add(
                    f"tensor {ours.key} is not {theirs.key} transposed, as ensure_weight_tying wants it; save it again"
                )

    def _note_names(self, modules: list[BoundModule]) -> None:
        """Names in other spellings, and targets without tensors, which stay at zero as in PEFT; the log says so."""
        if self._renamed:
            spelling = self._renamed[0].key
            self._notes.append(f"read {len(self._renamed)} names in another spelling than PEFT's, like {spelling}")
        trained = [module for module in modules if module.lora_a is not None]
        unused = self._config.unused_targets({module.module for module in trained})
        if unused:
            self._notes.append(f"target_modules without any tensor: {', '.join(unused)}")
        bound = {site.hf_name for module in trained for site in module.sites}
        absent = [name for name in self._index.hf_names if name not in bound and self._config.targets(name)]
        if absent:
            self._notes.append(
                f"{len(absent)} targeted modules have no tensors and stay as in the base, like {absent[0]}"
            )


def _tensors(keys: list[str]) -> str:
    return f"tensor{'s' if len(keys) > 1 else ''} {', '.join(keys)}"
