"""A copy from the device to the host that is waited for later, while the device goes on with other work."""

import numpy as np
import torch

from tensorrt_lora.utils.device import pin_memory_available


class HostCopy:
    """Starts to copy `source` when made; `wait` blocks for this copy, not for what was queued after it."""

    def __init__(self, source: torch.Tensor) -> None:
        pinned = pin_memory_available(source.device)
        self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
        self._host.copy_(source, non_blocking=pinned)
        self._copied = torch.cuda.Event() if pinned else None
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> np.ndarray:
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.numpy()
