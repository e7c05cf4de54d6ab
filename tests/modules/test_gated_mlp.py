from typing import cast

import pytest
import torch
from torch.nn import functional

from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_site import find_lora_sites
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.gated_mlp import GatedMLP
from tests.support.merged_lora import patch_lora

HIDDEN, INTERMEDIATE = 6, 10


def make_mlp(hidden_act: str = "silu") -> GatedMLP:
    mlp = GatedMLP(
        layer_idx=3,
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


def expected_output(
    mlp: GatedMLP, x: torch.Tensor, gate_up_delta: torch.Tensor, down_delta: torch.Tensor
) -> torch.Tensor:
    gate, up = functional.linear(x, mlp.gate_up_proj.weight + gate_up_delta, mlp.gate_up_proj.bias).chunk(2, -1)
    return functional.linear(gate * torch.sigmoid(gate) * up, mlp.down_proj.weight + down_delta, mlp.down_proj.bias)


def test_without_lora() -> None:
    mlp, x = make_mlp(), torch.randn(5, HIDDEN)
    nothing = torch.zeros(())
    torch.testing.assert_close(mlp(x, None), expected_output(mlp, x, nothing, nothing))


def test_lora_equals_changed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, x = make_mlp(), torch.randn(5, HIDDEN)
    gate_up_delta, down_delta = torch.randn(2 * INTERMEDIATE, HIDDEN), torch.randn(HIDDEN, INTERMEDIATE)
    params = cast(LoraParams, {})
    patch_lora(
        monkeypatch,
        {("gate_proj", "up_proj"): gate_up_delta, ("down_proj",): down_delta},
        params,
        layer_idx=3,
    )
    torch.testing.assert_close(mlp(x, params), expected_output(mlp, x, gate_up_delta, down_delta), rtol=1e-4, atol=1e-4)


def test_sites_have_tensorrt_llms_types() -> None:
    sites = find_lora_sites(torch.nn.ModuleDict({"mlp": make_mlp()}))
    assert {name: (site.module_type, site.in_features, site.out_features) for name, site in sites.items()} == {
        "mlp.gate_proj": (LoraModuleType.MLP_H_TO_4H, HIDDEN, INTERMEDIATE),
        "mlp.up_proj": (LoraModuleType.MLP_GATE, HIDDEN, INTERMEDIATE),
        "mlp.down_proj": (LoraModuleType.MLP_4H_TO_H, INTERMEDIATE, HIDDEN),
    }


def test_other_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="hidden_act='gelu' is not supported in a gated MLP; supported: 'silu'"):
        make_mlp("gelu")
