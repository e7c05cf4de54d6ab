import pytest
import torch

from tensorrt_lora.kernels.fp8_quantize import quantize
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization
from tensorrt_lora.modules.rms_norm import RMSNorm
from tests.support.lora_deltas import ALL_SLOTS, added, make_lora_delta, random_output


@pytest.mark.parametrize("quantization", [None, ActivationQuantization()])
def test_both_forms_agree(quantization: ActivationQuantization | None) -> None:
    norm = RMSNorm(size=12, eps=1e-6, dtype=torch.float32, device=torch.device("cpu"))
    norm.weight.normal_()
    x, residual = torch.randn(2, 3, 12)
    total = x + residual
    expected = total / total.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt() * norm.weight
    alone, alone_quantized = norm(total, quantization)
    torch.testing.assert_close(alone, expected)
    normed, stream, quantized = norm.add_and_norm(x, residual, quantization)
    torch.testing.assert_close(normed, expected)
    torch.testing.assert_close(stream, total)
    assert (quantized is None) == (alone_quantized is None) == (quantization is None)
    if quantization is not None and quantized is not None and alone_quantized is not None:
        assert torch.equal(quantized.dequantize(), quantize(normed, quantization).dequantize())
        assert torch.equal(quantized.dequantize(), alone_quantized.dequantize())


def test_a_delta_is_added_first() -> None:
    norm = RMSNorm(size=12, eps=1e-6, dtype=torch.float32, device=torch.device("cpu"))
    norm.weight.normal_()
    delta = make_lora_delta((12,), ALL_SLOTS)
    x, residual = random_output(delta), torch.randn(len(ALL_SLOTS), 12)
    expected, expected_stream, _ = norm.add_and_norm(added(delta, x), residual.clone())
    normed, stream, quantized = norm.add_and_norm(x, residual, delta=delta)
    assert torch.equal(normed, expected) and torch.equal(stream, expected_stream) and quantized is None
