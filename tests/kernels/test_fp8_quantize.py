"""Activations to float8, before and after the cast. Triton's interpreter casts to float8 wrongly: there only the scales
and the values before the cast are looked at; tests/gpu looks at the rest."""

import pytest
import torch

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_quantize import (
    _quantize_triton,
    quantize_per_group,
    quantize_per_token,
    quantize_reference,
    quantize_static,
)

INTERPRETED = use_triton(torch.zeros(1))
SHAPES = [(1, 256), (7, 300), (3, 40), (2, 1024)]


def quantize_uncast(
    x: torch.Tensor, groups: int, static_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What an op computes before it casts, and the scales [T, groups]."""
    values, scale = torch.full(x.shape, torch.nan), torch.full((groups, x.shape[0]), torch.nan).t()
    (_quantize_triton if INTERPRETED else quantize_reference)(x, values, scale, static_scale)
    return values, scale


@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_is_divided_by_its_own_scale(shape: tuple[int, int]) -> None:
    x = torch.randn(shape) * torch.logspace(-3, 3, shape[0])[:, None]
    x[-1] = 0
    values, scale = quantize_uncast(x, 1, None)
    torch.testing.assert_close(scale[:, 0], x.abs().amax(1).clamp(min=1e-12) / 448, rtol=1e-6, atol=0)
    torch.testing.assert_close(values, x / scale, rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_groups_have_scales_of_their_own(shape: tuple[int, int]) -> None:
    x = torch.randn(shape) * torch.logspace(-3, 3, shape[1])
    groups = -(-shape[1] // 128)
    if groups == 1:
        pytest.skip("one group is a whole token")
    values, scale = quantize_uncast(x, groups, None)
    for group, part in enumerate(x.split(128, dim=1)):
        torch.testing.assert_close(scale[:, group], part.abs().amax(1) / 448, rtol=1e-6, atol=0)
        expected = part / scale[:, group : group + 1]
        torch.testing.assert_close(values[:, 128 * group : 128 * (group + 1)], expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_calibrated_scale_cuts_off(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    x[0, :2] = torch.tensor([100.0, -100.0])
    values, scale = quantize_uncast(x, 1, torch.tensor(0.02))
    assert scale.eq(0.02).all()
    torch.testing.assert_close(values, (x / torch.tensor(0.02)).clamp(-448, 448), rtol=0, atol=0)
    assert values[0, 0] == 448 and values[0, 1] == -448


def test_rows_may_be_strided() -> None:
    x = torch.randn(5, 64)[:, 8:56]
    values, scale = quantize_uncast(x, 1, None)
    torch.testing.assert_close(values * scale, x, rtol=1e-6, atol=0)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_token_stays_broken(broken: float) -> None:
    x = torch.randn(3, 300)
    x[1, 7] = broken
    for groups in (1, 3):
        values, scale = quantize_uncast(x, groups, None)
        dequantized = values * scale.repeat_interleave(128, 1)[:, :300] if groups == 3 else values * scale
        assert dequantized[1].isnan().any()
        assert dequantized[0].isfinite().all() and dequantized[2].isfinite().all()


@pytest.mark.skipif(INTERPRETED, reason="the interpreter casts to float8 wrongly")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_scales_multiply_to_the_input(dtype: torch.dtype) -> None:
    x = torch.randn(6, 300).to(dtype)
    for result in (quantize_per_token(x), quantize_per_group(x), quantize_static(x, torch.tensor(0.01))):
        assert result.values.dtype is torch.float8_e4m3fn and result.values.is_contiguous()
        step = 2.0**-4 * x.float().abs() + 2.0**-10 * result.scale.amax()
        assert ((result.dequantize() - x.float()).abs() <= step).all()
    assert quantize_per_token(x).scale.shape == (6, 1)
    assert quantize_per_group(x).scale.shape == (6, 3) and quantize_per_group(x).scale.stride() == (1, 6)
    assert quantize_static(x, torch.tensor(0.01)).scale.tolist() == [[torch.tensor(0.01).item()]] * 6


@pytest.mark.skipif(INTERPRETED, reason="the interpreter casts to float8 wrongly")
def test_no_tokens() -> None:
    assert quantize_per_token(torch.zeros(0, 32)).values.shape == (0, 32)
