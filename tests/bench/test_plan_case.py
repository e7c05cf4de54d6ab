"""Links of a tuning chain at tiny shapes: with every plan they compute the same, and what LoRA means."""

from dataclasses import replace

import pytest
import torch

from tensorrt_lora.bench.plan_case import PlanCase
from tensorrt_lora.bench.preset_projections import preset_projections
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.models.projection import Projection

CPU = torch.device("cpu")
QKV, OUT, GATE_UP, DOWN = preset_projections("tiny")


def make_case(projection: Projection, *, rank: int = 16, tokens: int = 5, adapters: int = 3) -> PlanCase:
    case = PlanCase(projection, num_adapters=3, max_num_tokens=8, device=CPU, copies=2)
    case.set_adapters(rank)
    case.set_batch(tokens, adapters)
    return case


@pytest.mark.parametrize("projection", [QKV, replace(DOWN, itemsize=1), OUT])
@pytest.mark.parametrize("adapters", [1, 3])
def test_every_plan_computes_the_same(projection: Projection, adapters: int) -> None:
    case = make_case(projection, adapters=adapters)
    assert case.plans() == [plan for plan in LoraPlan if plan is not LoraPlan.EXPAND_IN_CONSUMER]
    base = [link() for link in case.links(None)]
    sequential = [link() for link in case.links(LoraPlan.SEQUENTIAL)]
    assert len(base) == 2 and not torch.equal(base[0], base[1]), "copies differ"
    for plan in case.plans():
        for link, expected, alone in zip(case.links(plan), sequential, base, strict=True):
            output = link()
            assert torch.equal(output, expected)
            assert output.shape == (5, sum(projection.output_sizes[:2]))  # values of attention go to the cache alone
            # B h is of order 1, as the base is, in every part of the output.
            for part in (output - alone).split(projection.output_sizes[:2], dim=1):
                assert 0.5 < part.float().std() < 2.0


@pytest.mark.parametrize("itemsize", [1, 2])
@pytest.mark.parametrize("adapters", [1, 3])
def test_gate_and_up_with_their_consumer(adapters: int, itemsize: int) -> None:
    case = make_case(replace(GATE_UP, itemsize=itemsize), adapters=adapters)
    assert case.plans() == list(LoraPlan)
    for link, base in zip(case.links(LoraPlan.SEQUENTIAL), case.links(None), strict=True):
        assert link().shape == base().shape == (5, GATE_UP.output_sizes[0])
        assert (link() - base()).float().std() > 0.5
    for plan in case.plans():
        for link, sequential in zip(case.links(plan), case.links(LoraPlan.SEQUENTIAL), strict=True):
            assert torch.equal(link(), sequential())


def test_adapters_take_turns() -> None:
    one, three = make_case(OUT, tokens=8, adapters=1), make_case(OUT, tokens=8, adapters=3)
    same_adapter = [True, False, False] * 3
    outputs = [case.links(LoraPlan.FUSED)[1]() for case in (one, three)]
    assert [torch.equal(*rows) for rows in zip(*outputs, strict=True)] == same_adapter[:8]


def test_ranks_and_batches_follow_each_other_in_one_case() -> None:
    case = make_case(DOWN, rank=8)
    before = case.links(LoraPlan.SEQUENTIAL)[0]()
    for rank in (33, 8):
        case.set_adapters(rank)
        case.set_batch(1, 1)
        outputs = [case.links(plan)[0]() for plan in case.plans()]
        assert outputs[0].shape == (1, 256) and all(torch.equal(output, outputs[0]) for output in outputs)
    case.set_batch(5, 3)
    assert case.links(LoraPlan.SEQUENTIAL)[0]().shape == before.shape


def test_many_tokens_are_not_fused() -> None:
    case = PlanCase(OUT, num_adapters=2, max_num_tokens=65, device=CPU, copies=1)
    case.set_adapters(16)
    case.set_batch(64, 2)
    assert LoraPlan.FUSED in case.plans()
    case.set_batch(65, 2)
    beside = [LoraPlan.SHRINK_BESIDE, LoraPlan.BOTH_BESIDE, LoraPlan.ADD_IN_CONSUMER]
    assert case.plans() == [LoraPlan.SEQUENTIAL, *beside]


def test_copies_defeat_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorrt_lora.bench.plan_case._ROTATED_BYTES", 6 * OUT.weight_bytes - 1)
    case = PlanCase(OUT, num_adapters=1, max_num_tokens=1, device=CPU)
    links = case.links(None)
    assert len(links) == 6
    outputs = [link() for link in links]
    assert not any(torch.equal(outputs[0], output) for output in outputs[1:])
