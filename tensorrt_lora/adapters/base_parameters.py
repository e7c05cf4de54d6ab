"""What the adapters' checks ask of the base model's own parameters.

PEFT saves the embedding and the head beside an adapter that targets them, and puts them in the place of the base's
when it loads. Owns telling such a copy, which changes nothing, from weights that were trained or resized, and which
sites have a bias. Asked by `SiteBinder` and `ModuleBinder`.
"""

from collections.abc import Mapping

import torch

from tensorrt_lora.adapters.bound_module import SERVED_DTYPES
from tensorrt_lora.adapters.peft_keys import strip_containers
from tensorrt_lora.lora.lora_site import LoraSite

_ROWS_AT_ONCE = 4096


class BaseParameters:
    """The parameters by name, "model.embed_tokens.weight". On the meta device names and shapes are all there is.

    Without any parameters nothing is known, and nothing is refused.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters = parameters
        # Names, not values: the weights of a quantised model are made when they are asked for.
        self._names = {strip_containers(name): name for name in parameters}

    def has_bias(self, site: LoraSite) -> bool | None:
        """Whether the base layer has a bias; None if that is not known."""
        return f"{site.hf_name}.bias" in self._parameters if self._parameters else None

    def copy_problem(self, key: str, path: str, copy: torch.Tensor) -> str | None:
        """Why the tensor `key` is no copy of the weight of the module at `path`; None as far as it is one."""
        base = self._weight(path)
        if base is None:
            return None
        if copy.shape != base.shape:
            return (
                f"tensor {key}: got {list(copy.shape)}, the model's {path} is {list(base.shape)}; the vocabulary was "
                "changed for training, and weights for it are not served"
            )
        if copy.dtype not in SERVED_DTYPES:
            return f"tensor {key}: dtype {copy.dtype} is not served; save it in a floating point type"
        if not base.is_meta and not _is_copy(copy, base):
            return (
                f"tensor {key}: holds other values than the model's {path}; fully trained modules are not served, "
                "and the adapter fits no other base"
            )
        return None

    def can_compare(self, path: str) -> bool:
        """Whether `copy_problem` looks at values."""
        base = self._weight(path)
        return base is not None and not base.is_meta

    def _weight(self, path: str) -> torch.Tensor | None:
        name = self._names.get(f"{path}.weight")
        return None if name is None else self._parameters[name]


def _is_copy(copy: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether the two are equal once one of them is rounded to the other's dtype."""
    up = down = True
    for start in range(0, copy.shape[0], _ROWS_AT_ONCE):
        theirs = copy[start : start + _ROWS_AT_ONCE]
        ours = base[start : start + _ROWS_AT_ONCE].detach().to("cpu")
        up = up and torch.equal(theirs.to(ours.dtype), ours)
        down = down and torch.equal(ours.to(theirs.dtype).double(), theirs.double())
        if not (up or down):
            return False
    return True
