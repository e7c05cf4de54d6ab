"""Whether a row-wise op runs as FlashInfer's kernel: what `dispatch` is for the ops with Triton kernels.

Called by the public ops of `activation` and `rms_norm`, which fall back to their torch references. FlashInfer
is an optional dependency that takes seconds to import: whoever is told to use it imports it on the spot.
"""

from functools import cache

import torch

from tensorrt_lora.utils.device import flashinfer_available

_VECTOR_BYTES = 16  # of a thread's loads and stores


def use_flashinfer(*rows: torch.Tensor) -> bool:
    """Whether FlashInfer serves all of `rows`.

    Each must be [T, N] bfloat16 on CUDA, contiguous, not empty, and every row must begin on 16 bytes.
    """
    return all(_is_served(tensor) for tensor in rows) and _is_installed()


def _is_served(rows: torch.Tensor) -> bool:
    return (
        rows.is_cuda
        and rows.dtype == torch.bfloat16
        and rows.dim() == 2
        and rows.numel() > 0
        and rows.is_contiguous()
        and rows.shape[1] * rows.itemsize % _VECTOR_BYTES == 0
        and rows.data_ptr() % _VECTOR_BYTES == 0
    )


@cache
def _is_installed() -> bool:
    # A search of the file system, which a decode step would otherwise repeat for every layer.
    return flashinfer_available()
