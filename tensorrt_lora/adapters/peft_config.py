"""What an adapter_config.json says about ranks, scales and targets.

Owns PEFT's own rules: which modules a configuration targets, and the rank and scale of each. Made by
`PeftConfigParser`, asked by `SiteBinder`. Knows no files, tensors or models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Literal, TypeVar

from tensorrt_lora.adapters.name_matcher import NameMatcher

ALL_LINEAR = "all-linear"
# PEFT's shorthand takes every linear layer but the output head; embeddings are no linear layers.
_NOT_IN_ALL_LINEAR = ("lm_head", "embed_tokens")

_Value = TypeVar("_Value", int, float)


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The checked part of a PEFT `LoraConfig` that decides what a module's adapter computes.

    Every rule follows PEFT 0.21 (`tuners/tuners_utils.py`, `utils/other.py`); fields have PEFT's names.
    """

    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    target_modules: tuple[str, ...] | str = ()
    exclude_modules: tuple[str, ...] | str = ()
    layers_to_transform: tuple[int, ...] = ()
    layers_pattern: tuple[str, ...] = ()
    use_dora: bool = False
    lora_bias: bool = False
    bias: Literal["none", "lora_only", "all"] = "none"
    ensure_weight_tying: bool = False
    base_model: str | None = None
    _matcher: NameMatcher = field(default_factory=NameMatcher, compare=False, repr=False)

    def rank_of(self, module: str) -> int:
        """Rank that the configuration gives `module`, a dotted module name."""
        return self._match_pattern(self.rank_pattern, module, self.r)

    def scale_of(self, module: str) -> float:
        """Factor on `B A x` for `module`: alpha / r, or alpha / sqrt(r) with rsLoRA (arXiv 2312.03732)."""
        alpha = self._match_pattern(self.alpha_pattern, module, self.lora_alpha)
        rank = self.rank_of(module)
        return alpha / sqrt(rank) if self.use_rslora else alpha / rank

    def targets(self, module: str) -> bool:
        """Whether PEFT would put an adapter on `module`, a dotted module name."""
        if self._matches(self.exclude_modules, module):
            return False
        if isinstance(self.target_modules, str) and self.target_modules.lower() == ALL_LINEAR:
            return module.rpartition(".")[2] not in _NOT_IN_ALL_LINEAR
        if isinstance(self.target_modules, tuple) and module in self.target_modules:
            return True  # a module's whole name is taken whatever the layers are
        return self._matches(self.target_modules, module) and self._is_in_layers(module)

    def unused_targets(self, modules: set[str]) -> list[str]:
        """Entries of a `target_modules` list that match none of `modules`."""
        if isinstance(self.target_modules, str):
            return []
        return [target for target in self.target_modules if not any(_is_end_of(target, m) for m in modules)]

    def _matches(self, names: tuple[str, ...] | str, module: str) -> bool:
        """A string is a regular expression for the whole name, a list holds whole names or their dotted ends."""
        if isinstance(names, str):
            return bool(names) and self._matcher.fullmatch(names, module)
        return any(_is_end_of(name, module) for name in names)

    def _is_in_layers(self, module: str) -> bool:
        if not self.layers_to_transform:
            return True
        prefixes = [layer_prefix(pattern) for pattern in self.layers_pattern] or [r".*?\.[^.]*\.(?P<idx>\d+)\."]
        for prefix in prefixes:
            match = self._matcher.match(prefix, module)
            if match is not None:
                # PEFT puts the pattern in as it is, so one like "a|b" can match without reaching the index.
                index = match["idx"]
                return index is not None and int(index) in self.layers_to_transform
        return False

    def _match_pattern(self, patterns: Mapping[str, _Value], module: str, default: _Value) -> _Value:
        """The value of the first pattern that matches the end of `module`, in the file's order."""
        for pattern, value in patterns.items():
            if self._matcher.matches_end(pattern, module):
                return value
        return patterns.get(module, default)


def layer_prefix(pattern: str) -> str:
    """The expression for names whose layer index follows a match of `layers_pattern`."""
    return rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\."


def _is_end_of(name: str, module: str) -> bool:
    return module == name or module.endswith(f".{name}")
