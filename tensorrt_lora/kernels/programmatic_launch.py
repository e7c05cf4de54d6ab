"""Which kernels are launched while the kernel before them still runs.

Programmatic dependent launch (sm_90): a kernel's programs start early, may read what no kernel writes (weights), and
wait with `gdc_wait` for all kernels before them ahead of anything else. It hides the launch, and the small kernel that
stands before a projection. Called by kernels whose body has that wait.
"""

import os
from functools import cache

import torch
import triton
from torch import Tensor

_ENABLED: bool = os.environ.get("TENSORRT_LORA_PDL", "1") != "0" and not triton.knobs.runtime.interpret


def programmatic_launch(tensor: Tensor) -> bool:
    """Whether a kernel on `tensor` is launched so. `TENSORRT_LORA_PDL=0` turns it off."""
    return _ENABLED and tensor.is_cuda and _is_supported(tensor.get_device())


def launch_options(programmatic: bool) -> dict[str, bool]:
    """The launch's keyword arguments for it; Triton's interpreter knows none."""
    return {"launch_pdl": True} if programmatic else {}


@cache
def _is_supported(device_index: int) -> bool:
    return torch.cuda.get_device_capability(device_index) >= (9, 0)
