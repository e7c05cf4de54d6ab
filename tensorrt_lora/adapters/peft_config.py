"""What an adapter_config.json says about ranks, scales and targets.

Owns PEFT's own rules: which modules a configuration targets, and the rank and scale of each. Made by
`PeftConfigParser`, asked by `SiteBinder`. Knows no files, tensors or models.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import TypeVar

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
    base_model: str | None = None

    def rank_of(self, module: str) -> int:
        """Rank that the configuration gives `module`, a dotted module name."""
        return _match_pattern(self.rank_pattern, module, self.r)

    def scale_of(self, module: str) -> float:
        """Factor on `B A x` for `module`: alpha / r, or alpha / sqrt(r) with rsLoRA (arXiv 2312.03732)."""
        alpha = _match_pattern(self.alpha_pattern, module, self.lora_alpha)
        rank = self.rank_of(module)
        return alpha / sqrt(rank) if self.use_rslora else alpha / rank

    def targets(self, module: str) -> bool:
        """Whether PEFT would put an adapter on `module`, a dotted module name."""
        if _matches(self.exclude_modules, module):
            return False
        if isinstance(self.target_modules, str) and self.target_modules.lower() == ALL_LINEAR:
            return module.rpartition(".")[2] not in _NOT_IN_ALL_LINEAR
        return _matches(self.target_modules, module) and self._is_in_layers(module)

    def unused_targets(self, modules: set[str]) -> list[str]:
        """Entries of a `target_modules` list that match none of `modules`."""
        if isinstance(self.target_modules, str):
            return []
        return [target for target in self.target_modules if not any(_matches((target,), m) for m in modules)]

    def _is_in_layers(self, module: str) -> bool:
        if not self.layers_to_transform:
            return True
        prefixes = [rf"(?:^|.*?\.){pattern}" for pattern in self.layers_pattern] or [r".*?\.[^.]*"]
        for prefix in prefixes:
            match = re.match(rf"{prefix}\.(?P<idx>\d+)\.", module)
            if match is not None:
                return int(match["idx"]) in self.layers_to_transform
        return False


def _matches(names: tuple[str, ...] | str, module: str) -> bool:
    """A string is a regular expression for the whole name, a list holds whole names or their dotted ends."""
    if isinstance(names, str):
        return bool(names) and re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _match_pattern(patterns: Mapping[str, _Value], module: str, default: _Value) -> _Value:
    """The value of the first pattern that matches the end of `module`, in the file's order."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return patterns.get(module, default)
