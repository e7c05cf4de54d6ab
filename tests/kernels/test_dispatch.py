"""Which implementation runs, in a plain run and in one with TRITON_INTERPRET=1 (see test_interpreter.py)."""

import os

import pytest
import torch

from tensorrt_lora.kernels.dispatch import use_triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_cpu_tensors_use_triton_in_the_interpreter_only(dtype: torch.dtype) -> None:
    assert use_triton(torch.empty(1, dtype=dtype)) == INTERPRETED


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes_that_the_interpreter_gets_wrong_use_the_reference(dtype: torch.dtype) -> None:
    assert not use_triton(torch.empty(1, dtype=dtype))
