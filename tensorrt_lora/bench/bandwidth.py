"""How fast the device moves bytes: what floors are computed from, measured in the same run as what is compared with
them."""

import statistics
import time

import torch

from tensorrt_lora.utils.device import free_memory

_MAX_BUFFER_BYTES = 2**30  # far beyond any cache
_COPIES = 16
_TIMINGS = 3
_WARMUP_SECONDS = 0.2  # an idle device takes some time to reach its clocks


def measure_copy_bandwidth(device: torch.device, *, num_bytes: int | None = None) -> float:
    """Bytes per second, read and written, of copies within the device's memory: median of a few timings.

    Args:
        num_bytes: of each of the two buffers; None takes 1 GiB, or less where little memory is free.
    """
    if num_bytes is None:
        num_bytes = min(_MAX_BUFFER_BYTES, free_memory(device) // 128)
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    warm = time.perf_counter() + _WARMUP_SECONDS
    while time.perf_counter() < warm:
        _time_copies(source, target)
    return 2 * num_bytes * _COPIES / statistics.median(_time_copies(source, target) for _ in range(_TIMINGS))


def _time_copies(source: torch.Tensor, target: torch.Tensor) -> float:
    """Seconds of `_COPIES` copies, from an idle device to an idle device."""
    target[0].item()
    start = time.perf_counter()
    for _ in range(_COPIES):
        target.copy_(source)
    target[0].item()  # waits for the copies, on any device
    return time.perf_counter() - start
