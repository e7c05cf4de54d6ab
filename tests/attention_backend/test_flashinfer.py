"""Which models FlashInfer attention serves. Its results are tested in tests/gpu."""

import pytest
import torch

from tensorrt_lora.attention_backend.flashinfer import flashinfer_unsupported_reason


def test_serves_bfloat16_with_head_size_128() -> None:
    assert flashinfer_unsupported_reason(torch.bfloat16, 128) is None


@pytest.mark.parametrize(
    ("dtype", "head_dim", "reason"),
    [
        (torch.float32, 128, "torch.float32"),
        (torch.float16, 128, "torch.float16"),
        (torch.bfloat16, 64, "is 64"),
    ],
)
def test_names_what_it_does_not_serve(dtype: torch.dtype, head_dim: int, reason: str) -> None:
    assert reason in (flashinfer_unsupported_reason(dtype, head_dim) or "")
