"""Small arrays on their way to a planner that copies them to the device itself.

Used by FlashInfer's metadata. Page-locked memory from torch's allocator is not reused before a copy from it is over,
so fresh tensors need no further care.
"""

from collections.abc import Sequence

import numpy as np
import torch


def pinned_int32(*arrays: np.ndarray | Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Page-locked int32 copies of 1-d arrays, side by side in one block."""
    parts = [np.asarray(array, dtype=np.int32) for array in arrays]
    block = torch.from_numpy(np.concatenate(parts)).pin_memory()
    return block.split([len(part) for part in parts])
