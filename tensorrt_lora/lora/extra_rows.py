"""The rows behind a module's rank rows: computed by `ExtraRowsBuilder`, copied into slots by `CudaGraphLoraParams`."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ExtraRows:
    """Bias and gain rows of one module, as the slot tables take them."""

    flags: int  # which there are, see `LoraTables.extras`
    rows: torch.Tensor  # [number of flags, out], model dtype
