"""Binds the tensors of one module of an adapter to the sites it adapts.

Owns the checks between a module's tensors, the configuration's flags and the sites' shapes. Called by `SiteBinder`,
which has sorted the tensors by module. Whatever does not fit goes to `problems`.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.base_parameters import BaseParameters
from tensorrt_lora.adapters.bound_module import SERVED_DTYPES, BoundModule, FileTensor
from tensorrt_lora.adapters.peft_config import PeftConfig
from tensorrt_lora.adapters.peft_keys import PeftKey, TensorRole
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import LoraModuleType

ModuleParts = Mapping[TensorRole, PeftKey]

_EMBEDDING_PAIR = (TensorRole.EMBEDDING_A, TensorRole.EMBEDDING_B)
_LINEAR_PAIR = (TensorRole.LORA_A, TensorRole.LORA_B)
_VOCABULARY = (LoraModuleType.EMBED_TOKENS, LoraModuleType.LM_HEAD)


class ModuleBinder:
    """Binds modules one by one; `report` then adds what several of them have in common, once."""

    def __init__(
        self, config: PeftConfig, max_rank: int, base_parameters: BaseParameters, problems: AdapterProblems
    ) -> None:
        self._config = config
        self._max_rank = max_rank
        self._base_parameters = base_parameters
        self._problems = problems
        self._shared: dict[str, list[str]] = defaultdict(list)  # offenders by what is wrong with them
        self._dropped_biases: list[str] = []
        self.notes: list[str] = []

    def bind(
        self, parts: ModuleParts, sites: tuple[LoraSite, ...], tensors: Mapping[str, torch.Tensor]
    ) -> BoundModule | None:
        """One module's tensors, with their sites; None if a half of its pair is missing."""
        module = next(iter(parts.values())).module
        self._check_flags(module, parts)
        found = {role: FileTensor(key.key, tensors[key.key]) for role, key in parts.items()}
        pair = _EMBEDDING_PAIR if sites[0].module_type is LoraModuleType.EMBED_TOKENS else _LINEAR_PAIR
        if set(parts) - {TensorRole.BASE_BIAS} and not self._has_pair(module, parts, pair):
            return None
        bound = BoundModule(
            module,
            sites,
            self._config.scale_of(module),
            lora_a=found.get(pair[0]),
            lora_b=found.get(pair[1]),
            lora_bias=found.get(TensorRole.LORA_BIAS),
            base_bias=found.get(TensorRole.BASE_BIAS),
            magnitude=found.get(TensorRole.MAGNITUDE),
        )
        self._check_shapes(bound)
        self._check_base_bias(bound)
        return bound

    def report(self) -> None:
        """Add what is the same for many tensors or modules."""
        for problem, offenders in self._shared.items():
            self._problems.add(f"{problem}: {', '.join(offenders)}")
        if self._dropped_biases:
            self.notes.append(
                f"bias={self._config.bias!r}, but the file holds no bias of {len(self._dropped_biases)} modules, like "
                f"{self._dropped_biases[0]}; they keep the base's (PEFT up to 0.19 lost trained ones when it saved)"
            )

    def _has_pair(self, module: str, parts: ModuleParts, pair: tuple[TensorRole, TensorRole]) -> bool:
        others = _LINEAR_PAIR if pair is _EMBEDDING_PAIR else _EMBEDDING_PAIR
        for role in others:
            if role in parts:
                self._problems.add(
                    f"tensor {parts[role].key}: {module} takes {pair[0].label} and {pair[1].label}; save it again"
                )
        if any(role in parts for role in others):
            return False
        for role in pair:
            if role not in parts:
                beside = next(key.key for other, key in parts.items() if other is not role)
                self._problems.add(f"{module}: {role.label} is missing beside {beside}; save the adapter again")
        return all(role in parts for role in pair)

    def _check_flags(self, module: str, parts: ModuleParts) -> None:
        """The configuration says which tensors a module has besides its pair; files and flags must agree."""
        config, has_pair = self._config, any(key.is_lora for key in parts.values())
        for role, flag, is_set in (
            (TensorRole.MAGNITUDE, "use_dora", config.use_dora),
            (TensorRole.LORA_BIAS, "lora_bias", config.lora_bias),
        ):
            if is_set and has_pair and role not in parts:
                self._shared[
                    f"adapter_config.json has {flag}=true, but modules have no {role.label}; save the adapter again"
                ].append(module)
            elif role in parts and not is_set:
                self._shared[
                    f"adapter_config.json has {flag}=false, but the file holds {role.label} tensors; set it to true or "
                    "remove them"
                ].append(parts[role].key)
        bias = parts.get(TensorRole.BASE_BIAS)
        if bias is not None and (config.bias == "none" or (config.bias == "lora_only" and not has_pair)):
            wanted = "'lora_only' or 'all'" if has_pair else "'all'"
            self._shared[
                f"adapter_config.json has bias={config.bias!r}, but the file holds trained biases of the base layers; "
                f"set bias to {wanted} or remove them"
            ].append(bias.key)

    def _check_base_bias(self, bound: BoundModule) -> None:
        have_bias = {self._base_parameters.has_bias(site) for site in bound.sites}
        if bound.base_bias is not None and False in have_bias:
            self._shared[
                "the file holds trained biases of layers that have none in this model; serve the base that the adapter "
                "was trained on"
            ].append(bound.base_bias.key)
        elif bound.base_bias is None and self._config.bias != "none" and True in have_bias:
            self._dropped_biases.append(bound.module)

    def _check_shapes(self, bound: BoundModule) -> None:
        width, height = bound.sites[0].in_features, sum(site.out_features for site in bound.sites)
        if bound.lora_a is not None and bound.lora_b is not None:
            rank = self._config.rank_of(bound.module)
            self._check_tensor(bound, bound.lora_a, [rank, width], rank_axis=0)
            self._check_tensor(bound, bound.lora_b, [height, rank], rank_axis=1)
            if rank > self._max_rank:
                limit = f"max_lora_rank={self._max_rank}"
                self._problems.add(f"{bound.module}: rank {rank} is above {limit}; raise it in LoraConfig to {rank}")
            if bound.scale == 0.0:
                self.notes.append(f"{bound.module} has lora_alpha 0 and adds nothing")
        for tensor in (bound.lora_bias, bound.base_bias, bound.magnitude):
            if tensor is not None:
                self._check_tensor(bound, tensor, [height], rank_axis=None)

    def _check_tensor(
        self, bound: BoundModule, tensor: FileTensor, wanted: list[int], *, rank_axis: int | None
    ) -> None:
        got = list(tensor.values.shape)
        if tensor.values.dtype not in SERVED_DTYPES:
            dtype = tensor.values.dtype
            self._problems.add(f"tensor {tensor.key}: dtype {dtype} is not served; save it in a floating point type")
        if got == wanted:
            return
        if tensor.values.numel() == 0:
            fix = "it is empty: gather sharded weights (ZeRO-3, FSDP) before saving"
        elif rank_axis is not None and len(got) == 2 and got[1 - rank_axis] == wanted[1 - rank_axis]:
            fix = f"the configuration gives this module rank {wanted[rank_axis]}; correct r or rank_pattern"
        elif bound.sites[0].module_type in _VOCABULARY and len(got) == len(wanted):
            fix = "the vocabulary or the model was another in training; a changed vocabulary is not served"
        else:
            base = f" ({self._config.base_model})" if self._config.base_model else ""
            fix = f"the adapter was trained on another base model{base}; serve it on that one"
        self._problems.add(f"tensor {tensor.key}: got {got}, wanted {wanted}; {fix}")
