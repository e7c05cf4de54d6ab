import pytest
import torch

from tensorrt_lora.kernels.fp8_weight import FP8_MAX, dequantize_weight, quantize_weight, quantize_weight_blocks

HALF_STEP = 2.0**-4  # relative: three bits of mantissa, rounded to nearest


def test_one_scale_for_a_tensor() -> None:
    weight = torch.randn(50, 70).bfloat16()
    values, scale = quantize_weight(weight)
    assert values.dtype is torch.float8_e4m3fn and scale.dtype is torch.float32 and scale.shape == ()
    assert values.float().abs().max() == FP8_MAX
    error = (dequantize_weight(values, scale.expand(50)) - weight.float()).abs()
    subnormal_half_step = 2.0**-10 * scale
    assert (error <= HALF_STEP * weight.float().abs() + subnormal_half_step).all()
    assert error.max() > 0


@pytest.mark.parametrize("shape", [(256, 384), (130, 257), (5, 7)])
def test_a_scale_for_each_block(shape: tuple[int, int]) -> None:
    rows, columns = shape
    weight = torch.randn(shape) * torch.logspace(-2, 2, rows)[:, None]
    values, scale = quantize_weight_blocks(weight)
    assert values.shape == shape and scale.shape == (-(-rows // 128), -(-columns // 128))
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            block = (slice(128 * i, 128 * (i + 1)), slice(128 * j, 128 * (j + 1)))
            assert values[block].float().abs().max() == FP8_MAX
            torch.testing.assert_close(scale[i, j], weight[block].abs().max() / FP8_MAX, rtol=1e-6, atol=0)
            torch.testing.assert_close(
                dequantize_weight(values, scale)[block], values[block].float() * scale[i, j], rtol=0, atol=0
            )
    error = (dequantize_weight(values, scale) - weight).abs()
    block_scale = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    assert (error <= HALF_STEP * weight.abs() + 2.0**-10 * block_scale).all()


def test_an_outlier_costs_only_its_own_block() -> None:
    weight = torch.randn(128, 256)
    weight[0, 0] = 1e5
    by_tensor = dequantize_weight(*(lambda values, scale: (values, scale.expand(128)))(*quantize_weight(weight)))
    by_block = dequantize_weight(*quantize_weight_blocks(weight))
    error = [(result - weight)[:, 128:].abs().mean() for result in (by_tensor, by_block)]
    assert error[0] > 10 * error[1]


@pytest.mark.parametrize("quantize", [quantize_weight, quantize_weight_blocks])
def test_zeros_stay_zeros(quantize) -> None:
    values, scale = quantize(torch.zeros(4, 6))
    assert values.float().eq(0).all() and scale.isfinite().all() and scale.gt(0).all()


def test_rows_with_scales_of_their_own() -> None:
    values = torch.ones(3, 2).to(torch.float8_e4m3fn)
    result = dequantize_weight(values, torch.tensor([1.0, 2.0, 0.5]))
    torch.testing.assert_close(result, torch.tensor([[1.0, 1.0], [2.0, 2.0], [0.5, 0.5]]), rtol=0, atol=0)
