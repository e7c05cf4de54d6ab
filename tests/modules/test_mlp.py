from typing import cast

import pytest
import torch
from torch.nn import functional

from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_site import find_lora_sites
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.mlp import MLP
from tests.support.completed import completed
from tests.support.merged_lora import patch_lora

HIDDEN, INTERMEDIATE = 6, 10


def make_mlp(hidden_act: str = "relu2") -> MLP:
    mlp = MLP(
        layer_idx=2,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        bias=True,
        hidden_act=hidden_act,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for parameter in mlp.parameters():
        parameter.normal_()
    return mlp


def expected_output(mlp: MLP, x: torch.Tensor, up_delta: torch.Tensor, down_delta: torch.Tensor) -> torch.Tensor:
    up = functional.linear(x, mlp.up_proj.weight + up_delta, mlp.up_proj.bias)
    return functional.linear(up.clamp(min=0) ** 2, mlp.down_proj.weight + down_delta, mlp.down_proj.bias)


def test_without_lora() -> None:
    mlp, x = make_mlp(), torch.randn(5, HIDDEN)
    nothing = torch.zeros(())
    torch.testing.assert_close(completed(*mlp(x, None)), expected_output(mlp, x, nothing, nothing))


def test_lora_equals_changed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, x = make_mlp(), torch.randn(5, HIDDEN)
    up_delta, down_delta = torch.randn(INTERMEDIATE, HIDDEN), torch.randn(HIDDEN, INTERMEDIATE)
    params = cast(LoraParams, {})
    patch_lora(monkeypatch, {("up_proj",): up_delta, ("down_proj",): down_delta}, params, layer_idx=2)
    expected = expected_output(mlp, x, up_delta, down_delta)
    torch.testing.assert_close(completed(*mlp(x, params)), expected, rtol=1e-4, atol=1e-4)


def test_the_up_projection_of_a_plain_mlp_is_h_to_4h() -> None:
    sites = find_lora_sites(torch.nn.ModuleDict({"mlp": make_mlp()}))
    assert {name: (site.module_type, site.in_features, site.out_features) for name, site in sites.items()} == {
        "mlp.up_proj": (LoraModuleType.MLP_H_TO_4H, HIDDEN, INTERMEDIATE),
        "mlp.down_proj": (LoraModuleType.MLP_4H_TO_H, INTERMEDIATE, HIDDEN),
    }


def test_other_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="hidden_act='silu' is not supported in a plain MLP; supported: 'relu2'"):
        make_mlp("silu")
