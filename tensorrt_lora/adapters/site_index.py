"""From a module name in an adapter file to the live sites it adapts.

Owns the match between an adapter's names and the module tree that really runs: containers around the layers,
fused projections, and names that `LoraConfig` maps. Asked by `SiteBinder` and `find_target_modules`. Knows no
tensors.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

from tensorrt_lora.adapters.peft_keys import strip_containers
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import CONFIG_NAMES, LoraModuleType

_LAYER = re.compile(r"layers\.(\d{1,9})\.")
_OUTSIDE_LAYERS = {"embed_tokens": LoraModuleType.EMBED_TOKENS, "lm_head": LoraModuleType.LM_HEAD}
_UNEMBED = "unembed_tokens"  # another trainer's name for the head


class SiteIndex:
    """Look-up of sites by the adapter's module paths (`PeftKey.path`).

    Args:
        sites: the adaptable modules of the running model by Hugging Face name.
        lora_config: `lora_target_modules` narrows `sites`, the name map adds names for their leaves.
    """

    def __init__(self, sites: Mapping[str, LoraSite], lora_config: LoraConfig) -> None:
        self._targets = list(lora_config.lora_target_modules)
        allowed = {t for name in self._targets for t in CONFIG_NAMES[name]} or set(LoraModuleType)
        self._all = {strip_containers(name): site for name, site in sites.items()}
        assert len(self._all) == len(sites), "two modules of the model differ by containers alone"
        self._sites = {path: site for path, site in self._all.items() if site.module_type in allowed}
        self._siblings: dict[str, dict[LoraModuleType, LoraSite]] = defaultdict(dict)
        for path, site in self._sites.items():
            self._siblings[path.rpartition(".")[0]][site.module_type] = site
        # Split names are those of the module tree: by the default table a Llama adapter's gate_proj would
        # bind to the up_proj of a plain MLP. Only fused names and names that the user maps are translated.
        self._types_by_leaf: dict[str, list[tuple[LoraModuleType, ...]]] = defaultdict(list)
        for name, leaf in lora_config.hf_modules.items():
            if len(CONFIG_NAMES[name]) > 1 or name in lora_config.trtllm_modules_to_hf_modules:
                self._types_by_leaf[leaf].append(CONFIG_NAMES[name])
        self._names_by_leaf = {leaf: name for name, leaf in lora_config.hf_modules.items()}
        self._up_first = not lora_config.swap_gate_up_proj_lora_b_weight

    @property
    def target_names(self) -> list[str]:
        """What `lora_target_modules` has to name for the sites that adapters may change, unfused."""
        return [module_type.config_name for module_type in sorted({s.module_type for s in self._sites.values()})]

    @property
    def hf_names(self) -> list[str]:
        """Full names of all sites that adapters may change."""
        return [site.hf_name for site in self._sites.values()]

    @property
    def leaves(self) -> list[str]:
        """Module names below a layer, like "self_attn.q_proj", once each."""
        return list(dict.fromkeys(_LAYER.sub("", path) for path in self._sites))

    def resolve(self, path: str) -> tuple[LoraSite, ...]:
        """The sites that the module at `path` adapts, in the order of its output rows; () if there are none.

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
        last = max((site.layer_idx for path, site in self._all.items() if _LAYER.match(path)), default=-1)
        if layer is not None and int(layer[1]) > last:
            return f"layer {layer[1]} does not exist, the model has 0 to {last}; serve the trained base"
        if leaf == _UNEMBED:
            return "this is another name for lm_head; rename it, and name 'lm_head' in lora_target_modules"
        site = self._all.get(path)
        name = site.module_type.config_name if site is not None else self._names_by_leaf.get(leaf)
        if self._targets and name is not None and name not in self._targets:
            return f"lora_target_modules={self._targets} leaves {leaf} out; add {name!r}"
        return f"no such module in this model; adapters may name {', '.join(self.leaves) or 'nothing'}"

    def must_be_named(self, path: str) -> bool:
        """Whether the module at `path` would be found if `lora_target_modules` named it: an empty list does not."""
        return path in _OUTSIDE_LAYERS and path not in self._sites

    def explain_unnamed(self, paths: list[str]) -> str:
        """What to set so that these modules, of those that must be named, are found."""
        wanted = [*self.target_names, *(_OUTSIDE_LAYERS[path].config_name for path in paths)]
        modules = " and ".join(paths)
        return f"LoRA on {modules} is served where lora_target_modules names it; set lora_target_modules={wanted}"
