import pytest
import torch

from tensorrt_lora.kernels.rms_norm import fused_add_rms_norm, rms_norm

EPS = 1e-5


def expected_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x64 = x.double()
    return x64 / torch.sqrt(x64.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 64), (2, 6, 16), (0, 8)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_norm_of_each_row(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    x = (3 * torch.randn(shape)).to(dtype)
    weight = (1 + 0.3 * torch.randn(shape[-1])).to(dtype)
    actual = rms_norm(x, weight, EPS)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected_norm(x, weight), rtol=tolerance, atol=tolerance)


def test_norm_leaves_its_input_and_takes_strided_rows() -> None:
    wide = torch.randn(4, 48)
    before = wide.clone()
    heads = wide[:, 16:32].view(4, 2, 8)
    weight = torch.randn(8)
    actual = rms_norm(heads, weight, EPS).double()
    torch.testing.assert_close(actual, expected_norm(heads, weight), rtol=2e-6, atol=2e-6)
    assert torch.equal(wide, before)


def test_epsilon_bounds_the_norm_of_a_zero_row() -> None:
    x = torch.zeros(1, 8)
    x[0, 0] = 1e-4
    expected = 1e-4 / (1e-8 / 8 + EPS) ** 0.5
    assert rms_norm(x, torch.ones(8), EPS)[0, 0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_add_writes_the_sum_and_its_norm_in_place(dtype: torch.dtype) -> None:
    x, residual = torch.randn(3, 40).to(dtype), torch.randn(3, 40).to(dtype)
    weight = torch.randn(40).to(dtype)
    total = x + residual
    expected = rms_norm(total, weight, EPS)
    fused_add_rms_norm(x, residual, weight, EPS)
    torch.testing.assert_close(residual, total, rtol=0, atol=0)
    torch.testing.assert_close(x, expected, rtol=0, atol=0)
