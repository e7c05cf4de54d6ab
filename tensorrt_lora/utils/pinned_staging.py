"""Host-to-device copies of small per-step arrays that do not wait for the device.

Called once a step by whoever owns a static device buffer (batch metadata, token ids). A page-locked buffer may not be
rewritten while its last copy is in flight, so a few of them take turns, each guarded by an event.
"""

import numpy as np
import torch

from tensorrt_lora.utils.device import pin_memory_available


class PinnedStaging:
    """A ring of page-locked buffers in front of one device buffer.

    Args:
        target: 1-d device tensor that receives the copies; never reallocated.
        depth: buffers in the ring; the host may run this many steps ahead of the device before it waits.
    """

    def __init__(self, target: torch.Tensor, *, depth: int = 3) -> None:
        assert target.dim() == 1
        self._target = target
        self._pinned = pin_memory_available(target.device)
        count = depth if self._pinned else 1
        self._buffers = [torch.empty(target.shape, dtype=target.dtype, pin_memory=self._pinned) for _ in range(count)]
        self._copied = [torch.cuda.Event() for _ in range(count)] if self._pinned else []
        self._turn = 0

    def copy(self, source: np.ndarray) -> None:
        """Copy `source` (1-d, the target's dtype, at most its length) to the front of the target, in stream order."""
        length = source.shape[0]
        if length == 0:
            return
        buffer = self._buffers[self._turn]
        if self._pinned:
            self._copied[self._turn].synchronize()  # returns at once unless the host is `depth` steps ahead
        buffer[:length].numpy()[:] = source
        self._target[:length].copy_(buffer[:length], non_blocking=self._pinned)
        if self._pinned:
            self._copied[self._turn].record()
        self._turn = (self._turn + 1) % len(self._buffers)
