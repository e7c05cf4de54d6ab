from typing import cast

import pytest
import torch

from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.linear import Linear
from tests.support.merged_lora import patch_lora

CPU = torch.device("cpu")


def make_linear(*, bias: bool, lora: bool = False) -> Linear:
    layer = LoraLayer(
        module_types=(LoraModuleType.ATTENTION_DENSE,), hf_names=("o_proj",), in_features=6, output_sizes=(4,)
    )
    linear = Linear(
        in_features=6,
        out_features=4,
        bias=bias,
        dtype=torch.float32,
        device=CPU,
        lora=layer if lora else None,
    )
    for parameter in linear.parameters():
        parameter.normal_()
    return linear


@pytest.mark.parametrize("bias", [False, True])
def test_base_projection(bias: bool) -> None:
    linear = make_linear(bias=bias)
    x = torch.randn(3, 6)
    expected = x @ linear.weight.T + (linear.bias if linear.bias is not None else 0)
    base = linear.base(x)
    assert base.x is x and base.weight.values is linear.weight and base.weight.bias is linear.bias
    assert linear.input_quantization is None
    torch.testing.assert_close(base(), expected)
    torch.testing.assert_close(linear(x, None, 0), expected)
    assert linear(x, None, 0).data_ptr() != linear(x, None, 0).data_ptr()


def test_lora_is_dispatched_with_the_given_layer_index(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = make_linear(bias=True, lora=True)
    x, delta = torch.randn(3, 6), torch.randn(4, 6)
    params = cast(LoraParams, {})
    patch_lora(monkeypatch, {("o_proj",): delta}, params, 7)
    assert linear.bias is not None
    torch.testing.assert_close(linear(x, params, 7), x @ (linear.weight + delta).T + linear.bias)


def test_parameters_have_the_asked_dtype_and_no_gradient() -> None:
    linear = Linear(in_features=2, out_features=3, bias=True, dtype=torch.bfloat16, device=CPU)
    assert {parameter.dtype for parameter in linear.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in linear.parameters())
