"""Which kernels are launched while the kernel before them still runs.

Programmatic dependent launch (sm_90) hides launches, and small kernels between large ones. Called by kernels that

* let the next kernel start (`gdc_launch_dependents`), which comes as soon as there is room. Projections, and attention,
  do so first of all. The small kernels between them do so once they have waited themselves, so that no more than one
  waits beside a projection: waiting programs take room that its loads want (1.4 % of a decode step of Qwen3-32B in
  float8, on an H200, when any number came ahead);
* read only what no kernel of a step writes, weights, positions and the like, before
* every program waits (`gdc_wait`) for the kernels in front, which have waited for those in front of them.

Behind an ordinary kernel or copy the wait returns when that has ended; behind a join of two streams, when the kernels
in front on both have. An ordinary kernel starts when the one before it has ended.
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
