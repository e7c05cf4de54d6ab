"""Every combination of bias, replaced base bias and magnitude, with and without a bias in the base layer."""

import gc
import itertools

import pytest
import torch

from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights, SiteKey
from tensorrt_lora.lora.extra_rows_builder import ExtraRowsBuilder
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import LoraModuleType

OUT, IN = 10, 14
KEY: SiteKey = (2, LoraModuleType.ATTENTION_Q)
SITE = LoraSite(*KEY, "model.layers.2.self_attn.q_proj", IN, OUT)


def make_builder(
    *, base_has_bias: bool, dtype: torch.dtype = torch.float32
) -> tuple[ExtraRowsBuilder, dict[str, torch.Tensor]]:
    parameters = {f"{SITE.hf_name}.weight": torch.randn(OUT, IN).to(dtype)}
    if base_has_bias:
        parameters[f"{SITE.hf_name}.bias"] = torch.randn(OUT).to(dtype)
    return ExtraRowsBuilder([SITE], parameters, dtype=dtype), parameters


def make_adapter(*, bias: bool, base_bias: bool, magnitude: bool, rank: int = 3) -> AdapterWeights:
    module = LoraModuleWeights(
        torch.randn(rank, IN),
        torch.randn(rank, OUT),
        0.5,
        bias=torch.randn(OUT) if bias else None,
        base_bias=torch.randn(OUT) if base_bias else None,
        magnitude=torch.rand(OUT) + 2 if magnitude else None,
    )
    return AdapterWeights("a", "1", {KEY: module})


@pytest.mark.parametrize("base_has_bias", [True, False])
@pytest.mark.parametrize(
    ("bias", "base_bias", "magnitude"), [flags for flags in itertools.product([False, True], repeat=3) if any(flags)]
)
def test_the_rows_give_the_adapted_layer(bias: bool, base_bias: bool, magnitude: bool, base_has_bias: bool) -> None:
    builder, parameters = make_builder(base_has_bias=base_has_bias)
    adapter = make_adapter(bias=bias, base_bias=base_bias, magnitude=magnitude)
    module, weight = adapter.modules[KEY], parameters[f"{SITE.hf_name}.weight"]
    old_bias = parameters.get(f"{SITE.hf_name}.bias", torch.zeros(OUT))

    extra = builder.rows_of(adapter)[KEY]

    has_bias_row = bias or base_bias or (magnitude and base_has_bias)
    assert extra.flags == BIAS_ROW * has_bias_row | GAIN_ROW * magnitude
    assert len(extra.rows) == extra.flags.bit_count() <= module.max_extra_rows
    x = torch.randn(5, IN)
    y, delta = x @ weight.T + old_bias, 0.5 * x @ module.a.T @ module.b
    gain = extra.rows[-1] if magnitude else torch.zeros(OUT)
    ours = y + gain * y + (1 + gain) * delta + (extra.rows[0] if has_bias_row else 0)

    merged = weight + 0.5 * module.b.T @ module.a
    if module.magnitude is not None:
        merged = module.magnitude[:, None] * merged / merged.norm(dim=1, keepdim=True)
    expected = x @ merged.T + (old_bias if module.base_bias is None else module.base_bias)
    expected += 0 if module.bias is None else module.bias
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_plain_adapters_have_none_and_need_no_base_parameters() -> None:
    adapter = make_adapter(bias=False, base_bias=False, magnitude=False)
    assert ExtraRowsBuilder([SITE], {}, dtype=torch.float32).rows_of(adapter) == {}
    assert adapter.num_pages == 1


def test_a_module_of_bias_alone_has_rank_0() -> None:
    builder, parameters = make_builder(base_has_bias=True, dtype=torch.bfloat16)
    adapter = make_adapter(bias=False, base_bias=True, magnitude=False, rank=0)
    rows = builder.rows_of(adapter)[KEY].rows
    assert adapter.num_pages == 1 and rows.dtype == torch.bfloat16
    expected = adapter.modules[KEY].base_bias - parameters[f"{SITE.hf_name}.bias"].float()
    torch.testing.assert_close(rows[0].float(), expected, atol=1e-2, rtol=1e-2)


def test_rows_are_computed_once_and_go_with_the_adapter() -> None:
    builder, _ = make_builder(base_has_bias=False)
    adapter = make_adapter(bias=True, base_bias=False, magnitude=True)
    first = builder.rows_of(adapter)
    assert builder.rows_of(adapter) is first
    assert len(builder._kept) == 1
    del adapter
    gc.collect()
    assert len(builder._kept) == 0
