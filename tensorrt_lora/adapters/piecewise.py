"""Large copies in small pieces, for loader threads.

torch hands large operations to all threads of the processor, where on a CPU the steps of the engine run too. A piece is
small enough to stay on the thread that asks, and in its cache from the copy to the check. Called by `host_weights` and
`combined_adapter`.
"""

import math
from collections.abc import Iterator

import torch

from tensorrt_lora.adapters.load_pacer import GiveWay, go_on

_VALUES_AT_ONCE = 32768  # torch's own bound (GRAIN_SIZE): up to here operations by element use one thread


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The rows of tensors of one shape [rows, ...], some at a time, side by side."""
    rows = tensors[0].shape[0]
    step = max(1, _VALUES_AT_ONCE * rows // max(1, tensors[0].numel()))
    for start in range(0, rows, step):
        yield tuple(tensor[start : start + step] for tensor in tensors)


def copy_finite(target: torch.Tensor, source: torch.Tensor, give_way: GiveWay = go_on) -> bool:
    """Copy `source` to the contiguous `target`, of one shape; returns whether all values are finite in its dtype.

    Calls `give_way` after each piece.
    """
    if source.dim() == 2 and not source.is_contiguous() and source.mT.is_contiguous():
        # A transposed matrix of the same dtype is copied in blocks, and on one thread, but only as a whole.
        target.copy_(_cast(source.mT, target.dtype, give_way).mT)
        give_way()
        source = target
    finite = True
    for to, of in pieces(target, source):
        if source is not target:
            to.copy_(of)
        finite = finite and _is_finite(to)
        give_way()
    return finite


def _cast(values: torch.Tensor, dtype: torch.dtype, give_way: GiveWay) -> torch.Tensor:
    if values.dtype == dtype:
        return values
    cast = torch.empty_like(values, dtype=dtype)
    for to, of in pieces(cast, values):
        to.copy_(of)
        give_way()
    return cast


def _is_finite(values: torch.Tensor) -> bool:
    """Twenty times faster than `isfinite`, which makes several tensors on its way; NaN is both least and largest."""
    if not values.numel():
        return True
    least, largest = torch.aminmax(values)
    return math.isfinite(least.item()) and math.isfinite(largest.item())
