import pytest
import torch

from tensorrt_lora.kernels.activation import silu_and_mul, squared_relu

DTYPES = [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)]


@pytest.mark.parametrize("shape", [(1, 2), (3, 26), (0, 8), (5, 256)])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_silu_of_the_first_half_times_the_second(shape: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    gate_up = (2 * torch.randn(shape)).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    actual = silu_and_mul(gate_up)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), gate / (1 + torch.exp(-gate)) * up, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_squared_relu(dtype: torch.dtype, tolerance: float) -> None:
    x = (2 * torch.randn(4, 9)).to(dtype)
    actual = squared_relu(x)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), x.double().clamp(min=0) ** 2, rtol=tolerance, atol=tolerance)
