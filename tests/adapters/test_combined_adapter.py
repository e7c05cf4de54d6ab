"""A combination computes the weighted sum of what its parts compute; parts are never touched."""

import pytest
import torch

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.combined_adapter import AdapterCombiner
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests

_Q, _V = (0, LoraModuleType.ATTENTION_Q), (1, LoraModuleType.ATTENTION_V)
_A, _B = LoRARequest("a", 1, "/a"), LoRARequest("b", 2, "/b")


def _adapter(name, ranks, *, dtype=torch.float32, scale=2.0, **extras):
    generator = torch.Generator().manual_seed(len(name) + sum(ranks.values()))
    modules = {
        key: LoraModuleWeights(
            torch.randn(rank, 8, generator=generator).to(dtype),
            torch.randn(rank, 6, generator=generator).to(dtype),
            scale * rank,
            **extras,
        )
        for key, rank in ranks.items()
    }
    return AdapterWeights(name, f"version of {name}", modules)


def _combine(adapters, weights, *, max_rank=16):
    request = WeightedLoRARequests(tuple(zip((_A, _B), weights, strict=True)))
    return AdapterCombiner(max_rank).combine(request, adapters)


def _delta(adapter, key):
    module = adapter.modules.get(key)
    return 0 if module is None else module.scale * module.a.t().double() @ module.b.double()


def test_the_sum_of_the_weighted_deltas():
    parts = [_adapter("a", {_Q: 3, _V: 4}), _adapter("bb", {_Q: 5}, scale=-0.5)]
    before = [module.a.clone() for part in parts for module in part.modules.values()]
    combined = _combine(parts, (0.7, -0.3))
    assert combined.name == "0.7 * a + -0.3 * b"
    assert {key: module.rank for key, module in combined.modules.items()} == {_Q: 8, _V: 4}
    for key in (_Q, _V):
        expected = 0.7 * _delta(parts[0], key) - 0.3 * _delta(parts[1], key)
        torch.testing.assert_close(_delta(combined, key), expected, rtol=1e-6, atol=1e-6)
        assert combined.modules[key].scale == 1.0
    after = [module.a for part in parts for module in part.modules.values()]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_weights_and_scales_are_rounded_once():
    part = _adapter("a", {_Q: 3}, dtype=torch.bfloat16)
    combined = AdapterCombiner(16).combine(WeightedLoRARequests(((_A, 1 / 3),)), [part])
    module = part.modules[_Q]
    assert combined.modules[_Q].a.dtype == torch.bfloat16
    assert torch.equal(combined.modules[_Q].a, (module.a.double() * (module.scale / 3)).bfloat16())
    assert torch.equal(combined.modules[_Q].b, module.b)


def test_the_version_depends_on_parts_order_and_weights():
    a, b = _adapter("a", {_Q: 3}), _adapter("b", {_Q: 3})
    versions = {_combine(parts, weights).version for parts, weights in (
        ((a, b), (1, 2)), ((a, b), (2, 1)), ((b, a), (1, 2)), ((a, b), (1, 2.000001)),
    )}  # fmt: skip
    assert len(versions) == 4
    assert _combine((a, b), (1, 2)).version == _combine((a, b), (1.0, 2.0)).version


def test_the_rank_of_a_module_counts_not_that_of_the_adapters():
    parts = [_adapter("a", {_Q: 9}), _adapter("b", {_V: 9})]
    assert _combine(parts, (1, 1)).max_rank == 9
    with pytest.raises(AdapterError, match=r"9 \+ 9 = 18 in one module, above max_lora_rank=16; raise it .* to 18"):
        _combine([parts[0], parts[0]], (1, 1))


@pytest.mark.parametrize(
    ("extras", "reason"),
    [
        ({"magnitude": torch.ones(6)}, "has DoRA magnitudes, which cannot be added up; use it alone"),
        ({"bias": torch.ones(6)}, "has trained biases, which PEFT does not combine; use it alone"),
        ({"base_bias": torch.ones(6)}, "has trained biases, which PEFT does not combine; use it alone"),
    ],
)
def test_parts_that_are_no_addends_are_named(extras, reason):
    with pytest.raises(AdapterError) as caught:
        _combine([_adapter("a", {_Q: 3}), _adapter("bb", {_Q: 3}, **extras)], (1, 1))
    assert str(caught.value) == f"adapter '1 * a + 1 * b' (/a, /b): adapter 'bb' {reason}"


def test_a_weight_that_overflows():
    with pytest.raises(AdapterError, match=r"too large for torch.float32; give smaller weights"):
        _combine([_adapter("a", {_Q: 3})] * 2, (1e38, 1))
