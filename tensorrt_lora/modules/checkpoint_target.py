"""Where one tensor of a checkpoint goes, and in which forms it may be stored.

Made by linear methods and by the checkpoint loader, which compares it with the file's header before it loads.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

FLOAT_DTYPES = ("F32", "F16", "BF16")
FP8_DTYPES = ("F8_E4M3",)


@dataclass(frozen=True, slots=True)
class CheckpointTarget:
    """Dtypes by safetensors' names.

    Attributes:
        tensor: what is filled: a parameter, or rows of one that stores several projections.
        shapes: the accepted shapes of the stored tensor.
        dtypes: its accepted dtypes.
        load: takes the stored tensor, on the host.
    """

    tensor: Tensor
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    load: Callable[[Tensor], object]


def copy_target(tensor: Tensor, dtypes: tuple[str, ...] = FLOAT_DTYPES) -> CheckpointTarget:
    """The stored tensor as it is, cast to `tensor`'s dtype."""
    return CheckpointTarget(tensor, (tuple(tensor.shape),), dtypes, tensor.copy_)
