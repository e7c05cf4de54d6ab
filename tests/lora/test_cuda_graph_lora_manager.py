"""The manager over a small module tree: discovery, limits, slots, and what it passes to a forward."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.kernels.streamed_linear_config import MAX_STREAMED_TOKENS
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.cuda_graph_lora_manager import CudaGraphLoraManager
from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable, PlanTableFile, PlanTimes
from tensorrt_lora.lora.lora_plans import LoraPlans, ProjectionShape
from tensorrt_lora.lora.lora_site import find_lora_sites
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.embedding import Embedding, LMHead

HIDDEN, WIDE = 8, 12
PAGE_BYTES = 2 * (2 * HIDDEN + 2 * WIDE) * 16 * 4  # two layers, two modules each, 16 rank rows, fp32


BASE_PARAMETERS = {
    f"layers.{layer_idx}.mlp.{leaf}.weight": torch.ones(WIDE, HIDDEN)
    for layer_idx in (0, 1)
    for leaf in ("gate_proj", "up_proj")
}


class Mlp(nn.Module):
    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.gate_up_lora = LoraLayer(
            module_types=(LoraModuleType.MLP_H_TO_4H, LoraModuleType.MLP_GATE),
            hf_names=("gate_proj", "up_proj"),
            in_features=HIDDEN,
            output_sizes=(WIDE, WIDE),
        )


class Layer(nn.Module):
    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.mlp = Mlp(layer_idx)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(0), Layer(1)])


@dataclass(frozen=True)
class Adapter:
    key: AdapterKey
    weights: AdapterWeights

    @property
    def num_pages(self) -> int:
        return self.weights.num_pages


def adapter(adapter_id: int, rank: int = 4, layer_idx: int = 1) -> Adapter:
    module = LoraModuleWeights(torch.randn(rank, HIDDEN), torch.randn(rank, WIDE), scale=2.0)
    weights = AdapterWeights(f"a{adapter_id}", "v1", {(layer_idx, LoraModuleType.MLP_GATE): module})
    return Adapter(AdapterKey(adapter_id, "v1"), weights)


def make_embedding() -> Embedding:
    return Embedding(vocab_size=32, hidden_size=HIDDEN, dtype=torch.float32, device=torch.device("cpu"))


def make_head() -> LMHead:
    return LMHead(vocab_size=32, hidden_size=HIDDEN, dtype=torch.float32, device=torch.device("cpu"))


def manager(
    cache_bytes: int = 1 << 20,
    *,
    model: nn.Module | None = None,
    plan_table: LoraPlanTable | None = None,
    **config: object,
) -> CudaGraphLoraManager:
    return CudaGraphLoraManager(
        model or Model(),
        LoraConfig(**config),
        base_parameters=BASE_PARAMETERS,
        plan_table=plan_table or LoraPlanTable(),
        cache_bytes=cache_bytes,
        max_num_tokens=320,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def test_sites_carry_the_names_of_the_live_modules():
    sites = find_lora_sites(Model())
    assert sorted(sites) == [f"layers.{i}.mlp.{leaf}" for i in (0, 1) for leaf in ("gate_proj", "up_proj")]
    site = sites["layers.1.mlp.up_proj"]
    assert (site.layer_idx, site.module_type) == (1, LoraModuleType.MLP_GATE)
    assert (site.in_features, site.out_features) == (HIDDEN, WIDE)


def test_lora_target_modules_narrow_the_sites():
    assert sorted(manager(lora_target_modules=["mlp_gate"]).sites) == ["layers.0.mlp.up_proj", "layers.1.mlp.up_proj"]


def test_embedding_and_head_are_sites_only_where_they_are_named():
    def sites_and_head(**config: object) -> tuple[set[str], bool]:
        model = nn.ModuleDict({"layer": Mlp(0), "embed_tokens": make_embedding(), "lm_head": make_head()})
        lora = manager(model=model, **config)
        return set(lora.sites), lora.adapts_head

    projections = {"layer.gate_proj", "layer.up_proj"}
    assert sites_and_head() == (projections, False)
    assert sites_and_head(lora_target_modules=["embed_tokens"]) == ({"embed_tokens"}, False)
    named = {"lora_target_modules": ["mlp_gate_up", "embed_tokens", "lm_head"]}
    assert sites_and_head(**named) == (projections | {"embed_tokens", "lm_head"}, True)


def test_targets_that_the_model_lacks_are_refused_by_name():
    with pytest.raises(ValueError, match=r"lora_target_modules=\['attn_q'\] names no layer.*mlp_gate.*mlp_h_to_4h"):
        manager(lora_target_modules=["attn_q"])


@pytest.mark.parametrize(("cache_bytes", "pages"), [(3 * PAGE_BYTES, 3), (100 * PAGE_BYTES, 8), (2 * PAGE_BYTES, 2)])
def test_slot_count_and_byte_limit_both_bind(cache_bytes: int, pages: int):
    slots = manager(cache_bytes, max_loras=4, max_lora_rank=17).slot_manager
    assert (slots.num_slots, slots.num_pages) == (4, pages)


def test_a_cache_too_small_for_one_adapter_is_refused_with_both_numbers():
    """A DoRA adapter of rank 32 has 34 rows."""
    sizes = rf"takes up to {3 * PAGE_BYTES} bytes.*may take {3 * PAGE_BYTES - 1}"
    with pytest.raises(ValueError, match=rf"{sizes}.*device_cache_percent"):
        manager(3 * PAGE_BYTES - 1, max_lora_rank=32)


def test_one_slot_has_room_for_the_extra_rows_of_the_largest_adapter():
    assert manager(max_loras=1, max_lora_rank=32).slot_manager.num_pages == 3
    assert manager(max_loras=4, max_lora_rank=32).slot_manager.num_pages == 8


def test_rows_map_to_slots_and_padding_to_the_base():
    lora = manager()
    first, second = adapter(7), adapter(9)
    params = lora.prepare(
        [first, None, second, first], [2, 1, 1, 1], num_padding_tokens=3, graph_plan=LoraPlans(LoraPlan.FUSED)
    )
    slot = {key: lora.slot_manager.slot_of(key) for key in (first.key, second.key)}
    a, b = slot[first.key], slot[second.key]
    assert params["cuda_graph_params"].batch.token_slots.tolist() == [a, a, -1, b, a, -1, -1, -1]
    assert params["num_seqs"] == 7 and params["use_cuda_graph_mode"]


def test_only_the_modules_an_adapter_touches_get_a_rank():
    lora = manager()
    one = adapter(1, rank=4, layer_idx=1)
    params = lora.prepare([one], [1])["cuda_graph_params"]
    slot = lora.slot_manager.slot_of(one.key)
    ranks = {key.layer_idx: tables.rank[:, slot].tolist() for key, tables in params.layer_info.items()}
    assert ranks == {0: [0, 0], 1: [0, 4]}


def test_a_slot_takes_the_extra_rows_and_the_next_tenant_loses_them():
    lora = manager(max_loras=1)
    a, b = torch.randn(16, HIDDEN), torch.randn(16, WIDE)
    module = LoraModuleWeights(a, b, 1.0, bias=torch.arange(float(WIDE)), magnitude=torch.ones(WIDE))
    weights = AdapterWeights("dora", "v1", {(1, LoraModuleType.MLP_GATE): module})
    assert weights.num_pages == 2  # 16 rank rows and two more
    params = lora.prepare([Adapter(AdapterKey(1, "v1"), weights)], [1])["cuda_graph_params"]
    tables = {key.layer_idx: tables for key, tables in params.layer_info.items()}
    assert tables[0].extras.tolist() == [[0], [0]] and tables[1].extras.tolist() == [[0], [3]]
    bias, gain = tables[1].extra_rows(0, 1)
    assert torch.equal(bias, module.bias)
    torch.testing.assert_close(gain, 1 / (torch.ones(WIDE, HIDDEN) + b.T @ a).norm(dim=1) - 1)
    lora.prepare([adapter(2)], [1])
    assert tables[1].extras.tolist() == [[0], [0]]


def test_addresses_survive_a_change_of_adapters():
    lora = manager(max_loras=1)
    before = lora.prepare([adapter(1)], [1])["cuda_graph_params"]
    pointers = [t.a_pool.data_ptr() for t in before.layer_info.values()] + [before.batch.token_slots.data_ptr()]
    after = lora.prepare([adapter(2, rank=60)], [1])["cuda_graph_params"]
    assert pointers == [t.a_pool.data_ptr() for t in after.layer_info.values()] + [after.batch.token_slots.data_ptr()]


def test_no_second_stream_without_cuda_whatever_the_flag():
    params = manager(overlap_lora_and_base=True).prepare([adapter(1)], [1])
    assert params["lora_aux_stream"] is None


@pytest.mark.parametrize("specialize", [True, False])
def test_a_base_only_batch_skips_the_lora_graph_only_when_specialised(specialize: bool):
    lora = manager(cuda_graph_specialize_lora=specialize)
    fused = LoraPlans(LoraPlan.FUSED)
    assert lora.graph_plan([None, None], 2) == (None if specialize else fused)
    assert lora.graph_plan([None, adapter(1)], 2) == fused
    assert lora.graph_plans(2) == ((fused, None) if specialize else (fused,))


def table_row(tokens: int, many: bool, rank: int, **microseconds: float) -> PlanTimes:
    return PlanTimes(
        in_features=HIDDEN,
        out_features=2 * WIDE,
        itemsize=4,
        tokens=tokens,
        many=many,
        rank=rank,
        base=1.0,
        microseconds=microseconds,
    )


def test_the_table_plans_every_graph_that_a_batch_may_ask_for():
    rows = [
        table_row(1, False, 32, sequential=3.0, fused=2.0, both_beside=1.0),
        table_row(8, False, 32, sequential=1.0, fused=2.0, both_beside=1.0),
        table_row(8, True, 32, sequential=2.0, fused=3.0, both_beside=1.0),
        table_row(8, True, 64, sequential=3.0, fused=2.0, both_beside=1.0),
    ]
    table = LoraPlanTable.of(PlanTableFile(device="x", measured_with={}, rows=rows), "a test")
    lora = manager(plan_table=table, max_lora_rank=64, max_loras=4)
    shape = ProjectionShape(HIDDEN, 2 * WIDE, 4)

    def plan(adapters: list[Adapter], num_rows: int) -> LoraPlan:
        plans = lora.graph_plan(adapters, num_rows)
        assert plans in lora.graph_plans(num_rows), "it has been captured"
        assert plans is not None
        return plans.plan_for(shape)

    # There is no second stream on the CPU, so what would run on it is out of the question.
    assert plan([adapter(1)], 1) is LoraPlan.FUSED
    assert plan([adapter(1)], 2) is LoraPlan.SEQUENTIAL, "the next larger batch that was measured"
    assert plan([adapter(1), adapter(2)], 4) is LoraPlan.SEQUENTIAL
    assert plan([adapter(1, rank=33), adapter(2)], 4) is LoraPlan.FUSED
    assert plan([adapter(1, rank=64)], 32) is LoraPlan.FUSED, "beyond the table: the rule"
    assert plan([adapter(1)], 257) is LoraPlan.EXPAND_IN_CONSUMER
    assert plan([adapter(1), adapter(1)], 8) is LoraPlan.SEQUENTIAL, "one adapter, twice"
    lora.fixed_plan = LoraPlan.SHRINK_BESIDE
    assert lora.graph_plan([adapter(1)], 1) == LoraPlans(LoraPlan.SHRINK_BESIDE)


@pytest.mark.parametrize(
    ("fixed_plan", "plan"),
    [
        (None, LoraPlan.EXPAND_IN_CONSUMER),
        (LoraPlan.EXPAND_IN_CONSUMER, LoraPlan.EXPAND_IN_CONSUMER),
        (LoraPlan.BOTH_BESIDE, LoraPlan.SHRINK_BESIDE),
        (LoraPlan.SHRINK_BESIDE, LoraPlan.SHRINK_BESIDE),
        (LoraPlan.FUSED, LoraPlan.SEQUENTIAL),
        (LoraPlan.SEQUENTIAL, LoraPlan.SEQUENTIAL),
    ],
)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_long_eager_forward_expands_in_the_next_op(fixed_plan: LoraPlan | None, plan: LoraPlan, overlap: bool):
    lora = manager(overlap_lora_and_base=overlap)
    lora.fixed_plan = fixed_plan
    few, many = MAX_STREAMED_TOKENS, 257
    assert lora.prepare([adapter(1)], [few])["lora_plans"] == LoraPlans(LoraPlan.SEQUENTIAL)
    assert lora.prepare([adapter(1), None], [few, many - few])["lora_plans"] == LoraPlans(plan)
