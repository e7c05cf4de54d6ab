"""`LoraLayer.forward_with_base` on the CPU: its result, and when it would use a second stream."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from tensorrt_lora.kernels.linear_weight import LinearWeight
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.lora_expand import lora_expand
from tensorrt_lora.lora import layer as layer_module
from tensorrt_lora.lora.adapter_slot_manager import Slot
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.cuda_graph_lora_params import CudaGraphLoraParams
from tensorrt_lora.lora.extra_rows_builder import ExtraRowsBuilder
from tensorrt_lora.lora.layer import BaseProjection, LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plans import LoraPlans
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora.pending_expand import PendingExpand
from tensorrt_lora.utils.multi_stream_utils import with_multi_stream

IN, Q, K, LAYER_IDX = 24, 20, 12, 3


@pytest.fixture
def qk_layer() -> LoraLayer:
    return LoraLayer(
        module_types=(LoraModuleType.ATTENTION_Q, LoraModuleType.ATTENTION_K),
        hf_names=("q_proj", "k_proj"),
        in_features=IN,
        output_sizes=(Q, K),
    )


def adapter(ranks: dict[LoraModuleType, int], seed: int) -> AdapterWeights:
    generator = torch.Generator().manual_seed(seed)
    out = {LoraModuleType.ATTENTION_Q: Q, LoraModuleType.ATTENTION_K: K}
    modules = {
        (LAYER_IDX, module_type): LoraModuleWeights(
            torch.randn(rank, IN, generator=generator), torch.randn(rank, out[module_type], generator=generator), 0.5
        )
        for module_type, rank in ranks.items()
    }
    return AdapterWeights(f"adapter-{seed}", str(seed), modules)


def params_for(
    layer: LoraLayer,
    token_slots: list[int],
    adapters: list[AdapterWeights],
    builder: ExtraRowsBuilder | None = None,
) -> LoraParams:
    params = CudaGraphLoraParams(
        {layer.key(LAYER_IDX): layer.shape},
        num_slots=3,
        num_pages=8,
        max_rank=33,
        max_num_tokens=128,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    first_page = 0
    for index, weights in enumerate(adapters):
        pages = tuple(reversed(range(first_page, first_page + weights.num_pages)))  # not in order, on purpose
        params.load_slot(Slot(index, pages), weights, builder.rows_of(weights) if builder else {})
        first_page += weights.num_pages
    params.write_batch(np.array(token_slots, dtype=np.int32))
    return LoraParams(
        cuda_graph_params=params,
        use_cuda_graph_mode=False,
        num_seqs=len(token_slots),
        lora_aux_stream=None,
        lora_plans=LoraPlans(LoraPlan.SEQUENTIAL),
    )


def expected(
    x: torch.Tensor, base: torch.Tensor, token_slots: list[int], adapters: list[AdapterWeights]
) -> torch.Tensor:
    result = base.clone()
    columns = {LoraModuleType.ATTENTION_Q: slice(0, Q), LoraModuleType.ATTENTION_K: slice(Q, Q + K)}
    for row, slot in enumerate(token_slots):
        if slot >= 0:
            for (_, module_type), module in adapters[slot].modules.items():
                result[row, columns[module_type]] += module.scale * (x[row] @ module.a.T @ module.b)
    return result


ADAPTERS = [
    adapter({LoraModuleType.ATTENTION_Q: 3, LoraModuleType.ATTENTION_K: 33}, seed=1),
    adapter({LoraModuleType.ATTENTION_K: 17}, seed=2),
]
TOKEN_SLOTS = [0, -1, 1, 0, 1, -1]


@pytest.mark.parametrize("shape", [(6, IN), (2, 3, IN)], ids=["2d", "3d"])
def test_every_row_gets_the_delta_of_its_own_adapter(qk_layer: LoraLayer, shape: tuple[int, ...]):
    x = torch.randn(shape)
    base = BaseProjection(x, LinearWeight(torch.randn(Q + K, IN), torch.randn(Q + K)))
    lora_params = params_for(qk_layer, TOKEN_SLOTS, ADAPTERS)
    output = LoraLayer.forward_with_base(base, (qk_layer,), x, lora_params, LAYER_IDX)
    rows = x.view(-1, IN)
    want = expected(rows, functional.linear(rows, base.weight.values, base.weight.bias), TOKEN_SLOTS, ADAPTERS)
    torch.testing.assert_close(output.view(-1, Q + K), want, atol=1e-4, rtol=1e-5)


def test_both_plans_and_the_plain_delta_agree_bit_for_bit(qk_layer: LoraLayer):
    x = torch.randn(6, IN)
    base = BaseProjection(x, LinearWeight(torch.randn(Q + K, IN)))
    lora_params = params_for(qk_layer, TOKEN_SLOTS, ADAPTERS)
    in_place = LoraLayer.forward_with_base(base, (qk_layer,), x, lora_params, LAYER_IDX)
    delta = qk_layer(x, lora_params, LAYER_IDX)
    assert torch.equal(in_place, base() + delta)
    base_rows = [row for row, slot in enumerate(TOKEN_SLOTS) if slot < 0]
    assert torch.equal(delta[base_rows], torch.zeros(len(base_rows), Q + K))


@pytest.mark.parametrize("plan", LoraPlan)
def test_bias_and_dora_rows_beside_plain_and_base_rows(qk_layer: LoraLayer, plan: LoraPlan):
    weight, base_bias = torch.randn(Q + K, IN), torch.randn(Q + K)
    parameters = {"q.weight": weight[:Q], "k.weight": weight[Q:], "q.bias": base_bias[:Q], "k.bias": base_bias[Q:]}
    q, k = LoraModuleType.ATTENTION_Q, LoraModuleType.ATTENTION_K
    sites = [LoraSite(LAYER_IDX, q, "q", IN, Q), LoraSite(LAYER_IDX, k, "k", IN, K)]
    dora = replace(ADAPTERS[1].modules[LAYER_IDX, k], magnitude=torch.rand(K) + 5, base_bias=torch.randn(K))
    bias_alone = LoraModuleWeights(torch.empty(0, IN), torch.empty(0, Q), 0.0, bias=torch.randn(Q))
    adapters = [
        ADAPTERS[0],
        AdapterWeights("extras", "3", {(LAYER_IDX, k): dora, (LAYER_IDX, q): bias_alone}),
    ]
    x = torch.randn(6, IN)
    base = BaseProjection(x, LinearWeight(weight, base_bias))
    builder = ExtraRowsBuilder(sites, parameters, dtype=torch.float32)
    lora_params = params_for(qk_layer, TOKEN_SLOTS, adapters, builder)
    lora_params["lora_plans"] = LoraPlans(plan)
    with with_multi_stream(True):
        output = LoraLayer.forward_with_base(base, (qk_layer,), x, lora_params, LAYER_IDX)

    want = expected(x, base(), TOKEN_SLOTS, [ADAPTERS[0], AdapterWeights("none", "", {})])
    merged = weight[Q:] + dora.scale * dora.b.T @ dora.a
    merged = dora.magnitude[:, None] * merged / merged.norm(dim=1, keepdim=True)
    rows = [row for row, slot in enumerate(TOKEN_SLOTS) if slot == 1]
    want[rows, :Q] += bias_alone.bias
    want[rows, Q:] = x[rows] @ merged.T + dora.base_bias
    torch.testing.assert_close(output, want, atol=1e-4, rtol=1e-5)
    sequential = LoraLayer.forward_with_base(base, (qk_layer,), x, lora_params, LAYER_IDX)
    assert torch.equal(output, sequential)
    base_rows = [row for row, slot in enumerate(TOKEN_SLOTS) if slot < 0]
    assert torch.equal(output[base_rows], base()[base_rows])


def test_without_lora_params_or_a_targeted_layer_only_the_base_runs(qk_layer: LoraLayer):
    x = torch.randn(6, IN)
    base = BaseProjection(x, LinearWeight(torch.randn(Q + K, IN)))
    lora_params = params_for(qk_layer, TOKEN_SLOTS, ADAPTERS)
    assert torch.equal(LoraLayer.forward_with_base(base, (qk_layer,), x, None, LAYER_IDX), base())
    assert torch.equal(LoraLayer.forward_with_base(base, (qk_layer,), x, lora_params, LAYER_IDX + 1), base())


def test_the_result_of_a_foreign_callable_is_not_written_to(qk_layer: LoraLayer):
    x = torch.randn(6, IN)
    shared = torch.randn(6, Q + K)
    before = shared.clone()
    lora_params = params_for(qk_layer, TOKEN_SLOTS, ADAPTERS)
    output = LoraLayer.forward_with_base(lambda: shared, (qk_layer,), x, lora_params, LAYER_IDX)
    assert torch.equal(shared, before)
    torch.testing.assert_close(output, expected(x, before, TOKEN_SLOTS, ADAPTERS), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("multi_stream", "has_stream", "parallel"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_aux_stream_reaches_the_helper_only_inside_with_multi_stream(
    qk_layer: LoraLayer, monkeypatch: pytest.MonkeyPatch, multi_stream: bool, has_stream: bool, parallel: bool
):
    stream, events, seen = object(), (object(), object()), []

    def sequential(fn0, fn1, event0, event1, aux_stream=None, disable_on_compile=False):
        seen.append((event0, event1, aux_stream, disable_on_compile))
        return fn0(), fn1()

    monkeypatch.setattr(layer_module, "maybe_execute_in_parallel", sequential)
    monkeypatch.setattr(layer_module, "create_event_pair", lambda: events)
    x = torch.randn(6, IN)
    base = BaseProjection(x, LinearWeight(torch.randn(Q + K, IN)))
    lora_params = params_for(qk_layer, TOKEN_SLOTS, ADAPTERS)
    sequential_output = LoraLayer.forward_with_base(base, (qk_layer,), x, lora_params, LAYER_IDX)
    lora_params["lora_aux_stream"] = stream if has_stream else None  # type: ignore[typeddict-item]
    lora_params["lora_plans"] = LoraPlans(LoraPlan.BOTH_BESIDE)
    with with_multi_stream(multi_stream):
        output = LoraLayer.forward_with_base(base, (qk_layer,), x, lora_params, LAYER_IDX)
    assert seen[1] == ((*events, stream, True) if parallel else (None, None, None, True))
    assert torch.equal(output, sequential_output)


@pytest.mark.parametrize("has_stream", [True, False])
@pytest.mark.parametrize("plan", LoraPlan)
def test_many_tokens_leave_the_expand_to_the_next_op(
    qk_layer: LoraLayer, monkeypatch: pytest.MonkeyPatch, plan: LoraPlan, has_stream: bool
):
    stream, events, seen = object(), (object(), object()), []

    def sequential(fn0, fn1, event0, event1, aux_stream=None, disable_on_compile=False):
        seen.append((event0, event1, aux_stream))
        return fn0(), fn1()

    monkeypatch.setattr(layer_module, "maybe_execute_in_parallel", sequential)
    monkeypatch.setattr(layer_module, "create_event_pair", lambda: events)
    token_slots = TOKEN_SLOTS * 11
    x = torch.randn(len(token_slots), IN)
    base = BaseProjection(x, LinearWeight(torch.randn(Q + K, IN)))
    lora_params = params_for(qk_layer, token_slots, ADAPTERS)
    lora_params["lora_aux_stream"] = stream if has_stream else None  # type: ignore[typeddict-item]
    lora_params["lora_plans"] = LoraPlans(plan)
    with with_multi_stream(True):
        whole = LoraLayer.forward_with_base(base, (qk_layer,), x, lora_params, LAYER_IDX)
        output, pending = qk_layer.forward_deferred(base, lora_params, LAYER_IDX)
    on_stream = has_stream and plan not in (LoraPlan.SEQUENTIAL, LoraPlan.FUSED)
    assert seen == [(*events, stream) if on_stream else (None, None, None)] * 2
    assert isinstance(pending, PendingExpand) is (plan is LoraPlan.EXPAND_IN_CONSUMER)
    if isinstance(pending, PendingExpand):
        assert torch.equal(output, base()) and pending.h.shape == (1, 2, len(token_slots), 48)
        lora_expand(pending.h, pending.tables, pending.batch, output, accumulate=True)
    elif isinstance(pending, LoraDelta):
        output = pending.added_to(output)
    assert torch.equal(output, whole)


def test_the_tables_are_those_of_the_last_load(qk_layer: LoraLayer):
    x = torch.randn(2, IN)
    base = BaseProjection(x, LinearWeight(torch.randn(Q + K, IN)))
    lora_params = params_for(qk_layer, [0, 0], ADAPTERS)
    replaced = [ADAPTERS[1]]
    lora_params["cuda_graph_params"].load_slot(Slot(0, (7, 2)), ADAPTERS[1], {})
    output = LoraLayer.forward_with_base(base, (qk_layer,), x, lora_params, LAYER_IDX)
    torch.testing.assert_close(output, expected(x, base(), [0, 0], replaced), atol=1e-4, rtol=1e-5)
