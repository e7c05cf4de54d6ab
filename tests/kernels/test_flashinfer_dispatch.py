import pytest
import torch

from tensorrt_lora.kernels.flashinfer_dispatch import use_flashinfer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_cpu_uses_the_references(dtype: torch.dtype) -> None:
    assert not use_flashinfer(torch.zeros(2, 64, dtype=dtype))
