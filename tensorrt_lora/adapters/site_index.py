"""From a module name in an adapter file to the live sites it adapts.

Owns the match between an adapter's names and the module tree that really runs: containers around the layers, fused
projections, and names that `LoraConfig` maps. Asked by `SiteBinder` and `find_target_modules`. Knows no tensors.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

from tensorrt_lora.adapters.peft_keys import strip_containers
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import LoraModuleType

_LAYER = re.compile(r"layers\.(\d+)\.")
_OUTSIDE_LAYERS = ("lm_head", "embed_tokens", "unembed_tokens")


class SiteIndex:
    """Look-up of sites by the adapter's module paths (`PeftKey.path`).

    Args:
        sites: the adaptable modules of the running model by Hugging Face name.
        lora_config: `lora_target_modules` narrows `sites` (which may be narrowed already); the name map adds leaf names.
    """

    def __init__(self, sites: Mapping[str, LoraSite], lora_config: LoraConfig) -> None:
        self._targets = list(lora_config.lora_target_modules)
        allowed = {t for name in self._targets for t in LoraModuleType.from_config_name(name)} or set(LoraModuleType)
        self._all = {strip_containers(name): site for name, site in sites.items()}
        self._sites = {path: site for path, site in self._all.items() if site.module_type in allowed}
        self._siblings: dict[str, dict[LoraModuleType, LoraSite]] = defaultdict(dict)
        for path, site in self._sites.items():
            self._siblings[path.rpartition(".")[0]][site.module_type] = site
        # A leaf name of the map may stand for several module types; the module tree tells which one it is.
        self._types_by_leaf: dict[str, list[tuple[LoraModuleType, ...]]] = defaultdict(list)
        for name, leaf in lora_config.hf_modules.items():
            self._types_by_leaf[leaf].append(LoraModuleType.from_config_name(name))
        self._up_first = not lora_config.swap_gate_up_proj_lora_b_weight

    @property
    def hf_names(self) -> list[str]:
        """Full names of all sites that adapters may change."""
        return [site.hf_name for site in self._sites.values()]

    @property
    def leaves(self) -> list[str]:
        """Module names below a layer, like "self_attn.q_proj", once each."""
        return list(dict.fromkeys(_LAYER.sub("", path) for path in self._sites))

    def resolve(self, path: str) -> tuple[LoraSite, ...]:
        """The sites that the module at `path` adapts, in the order of its output rows; empty if it adapts none.

        A fused projection gives its parts: q, k, v, or gate, up (up, gate where the configuration says so).
        """
        if path in self._sites:
            return (self._sites[path],)
        parent, _, leaf = path.rpartition(".")
        siblings = self._siblings.get(parent, {})
        for types in self._types_by_leaf.get(leaf, ()):
            if all(module_type in siblings for module_type in types):
                parts = tuple(siblings[module_type] for module_type in types)
                return parts[::-1] if self._up_first and LoraModuleType.MLP_GATE in types else parts
        return ()

    def explain(self, path: str) -> str:
        """Why `resolve(path)` found nothing, and what to do."""
        leaf = path.rpartition(".")[2]
        layer = _LAYER.match(path)
        num_layers = 1 + max((site.layer_idx for site in self._all.values()), default=-1)
        if layer is not None and int(layer[1]) >= num_layers:
            return f"layer {int(layer[1])} does not exist, the model has layers 0 to {num_layers - 1}; use the base it was trained on"
        if leaf in _OUTSIDE_LAYERS:
            return f"LoRA on {leaf} is not served yet; leave it out of target_modules"
        if self._targets and (path in self._all or leaf in self._types_by_leaf):
            return f"lora_target_modules={self._targets} leaves {leaf} out; add {self._config_name(path)}"
        return f"no such module in this model; adapters may name {', '.join(self.leaves) or 'nothing'}"

    def _config_name(self, path: str) -> str:
        if path in self._all:
            return repr(self._all[path].module_type.config_name)
        names = sorted({t.config_name for types in self._types_by_leaf[path.rpartition(".")[2]] for t in types})
        return " and ".join(map(repr, names))
