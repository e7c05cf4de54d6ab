"""Copies of the base model's embedding and head in adapter files.

PEFT saves them beside the adapter when the embedding or the head is a target, and puts them in the place of the base's
when it loads. Owns telling such a copy, which changes nothing, from weights that were trained or resized.
"""

from collections.abc import Mapping

import torch
from torch import nn

_LEAVES = ("embed_tokens", "lm_head")
_ROWS_AT_ONCE = 4096


def find_base_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights [vocab, hidden] of `model`'s embedding and head, by leaf name; they may be on the meta device."""
    found = {}
    for name, module in model.named_modules():
        leaf, weight = name.rpartition(".")[2], getattr(module, "weight", None)
        if leaf in _LEAVES and isinstance(weight, torch.Tensor):
            found[leaf] = weight.detach()
    return found


class BaseCopyChecker:
    """Compares copies with the base model's own weights; knows shapes only where those are on the meta device."""

    def __init__(self, base_weights: Mapping[str, torch.Tensor]) -> None:
        self._base_weights = base_weights

    def problem(self, key: str, leaf: str, copy: torch.Tensor) -> str | None:
        """Why the tensor is no copy of the base model's `leaf`; None if it is one, as far as can be seen."""
        base = self._base_weights.get(leaf)
        if base is None:
            return None
        if copy.shape != base.shape:
            return (
                f"tensor {key}: got {list(copy.shape)}, the model's {leaf} is {list(base.shape)}; the vocabulary was "
                "changed for training, and weights for it are not served"
            )
        if not base.is_meta and not _is_copy(copy, base):
            return (
                f"tensor {key}: holds other values than the model's {leaf}; fully trained modules are not served, "
                "and the adapter fits no other base"
            )
        return None

    def can_compare(self, leaf: str) -> bool:
        """Whether `problem` looks at values."""
        base = self._base_weights.get(leaf)
        return base is not None and not base.is_meta


def _is_copy(copy: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether the two are equal once one of them is rounded to the other's dtype."""
    up = down = True
    for start in range(0, copy.shape[0], _ROWS_AT_ONCE):
        theirs = copy[start : start + _ROWS_AT_ONCE]
        ours = base[start : start + _ROWS_AT_ONCE].to("cpu")
        up = up and torch.equal(theirs.to(ours.dtype), ours)
        down = down and torch.equal(ours.to(theirs.dtype), theirs)
        if not (up or down):
            return False
    return True
