from typing import Any, cast, get_args

import pytest
import torch
from torch.nn import functional

from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.model_quantization import ModelQuantization
from tensorrt_lora.config.quant_config import QuantAlgo
from tensorrt_lora.kernels.lora_silu_and_mul import lora_silu_and_mul
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.streamed_linear_config import MAX_STREAMED_TOKENS
from tensorrt_lora.lora.cuda_graph_lora_manager import CudaGraphLoraManager
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable
from tensorrt_lora.lora.lora_plans import LoraPlans
from tensorrt_lora.lora.lora_site import find_lora_sites
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules import gated_mlp
from tensorrt_lora.modules.gated_mlp import GatedMLP
from tensorrt_lora.modules.linear_method_factory import LinearMethodFactory
from tensorrt_lora.utils.multi_stream_utils import with_multi_stream
from tests.support.completed import completed
from tests.support.merged_lora import patch_lora
from tests.support.random_adapters import random_adapter

HIDDEN, INTERMEDIATE = 6, 10


def make_mlp(
    hidden_act: str = "silu",
    *,
    hidden: int = HIDDEN,
    intermediate: int = INTERMEDIATE,
    quant_algo: QuantAlgo | None = None,
) -> GatedMLP:
    mlp = GatedMLP(
        layer_idx=3,
        hidden_size=hidden,
        intermediate_size=intermediate,
        bias=True,
        hidden_act=hidden_act,
        dtype=torch.float32,
        device=torch.device("cpu"),
        methods=LinearMethodFactory(None if quant_algo is None else ModelQuantization(quant_algo)),
    )
    for linear in (mlp.gate_up_proj, mlp.down_proj):
        linear.set_weight(torch.randn(linear.out_features, linear.in_features))
        assert linear.bias is not None
        linear.bias.normal_()
    return mlp


def expected_output(
    mlp: GatedMLP, x: torch.Tensor, gate_up_delta: torch.Tensor, down_delta: torch.Tensor
) -> torch.Tensor:
    gate, up = functional.linear(x, mlp.gate_up_proj.weight + gate_up_delta, mlp.gate_up_proj.bias).chunk(2, -1)
    return functional.linear(gate * torch.sigmoid(gate) * up, mlp.down_proj.weight + down_delta, mlp.down_proj.bias)


def test_without_lora() -> None:
    mlp, x = make_mlp(), torch.randn(5, HIDDEN)
    nothing = torch.zeros(())
    torch.testing.assert_close(completed(*mlp(x, None)), expected_output(mlp, x, nothing, nothing))


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
    expected = expected_output(mlp, x, gate_up_delta, down_delta)
    torch.testing.assert_close(completed(*mlp(x, params)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 5, 65])
@pytest.mark.parametrize("quant_algo", [None, *get_args(QuantAlgo)])
def test_expanding_in_the_product_changes_nothing(
    quant_algo: QuantAlgo | None, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlp = make_mlp(hidden=128, intermediate=256, quant_algo=quant_algo)
    blocks = torch.nn.ModuleDict({"mlp": mlp})
    manager = CudaGraphLoraManager(
        blocks,
        LoraConfig(max_lora_rank=16, max_loras=2),
        base_parameters={},
        plan_table=LoraPlanTable(),
        cache_bytes=1 << 24,
        max_num_tokens=tokens,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    adapters = [random_adapter(manager.sites, rank, rank=rank, dtype=torch.float32) for rank in (3, 8)]
    rows = [[*adapters, None][token % 3] for token in range(tokens)]
    x = torch.randn(tokens, 128)
    expanded = []

    def watch(*arguments: Any) -> tuple[torch.Tensor, QuantizedActivation | None]:
        expanded.append(arguments)
        return lora_silu_and_mul(*arguments)

    monkeypatch.setattr(gated_mlp, "lora_silu_and_mul", watch)

    def run(plan: LoraPlan) -> torch.Tensor:
        with with_multi_stream(True):
            return completed(*mlp(x, manager.prepare(rows, [1] * tokens, graph_plan=LoraPlans(plan))))

    sequential = run(LoraPlan.SEQUENTIAL)
    assert not expanded and not torch.equal(completed(*mlp(x, None)), sequential)
    assert torch.equal(run(LoraPlan.EXPAND_IN_CONSUMER), sequential)
    assert [arguments[1].dim() for arguments in expanded] == [3 if tokens <= MAX_STREAMED_TOKENS else 4]
    assert torch.equal(run(LoraPlan.ADD_IN_CONSUMER), sequential)


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
