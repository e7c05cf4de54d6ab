"""lora_add by itself; that it gives the bits of an accumulating expand is tested with the expand."""

import pytest
import torch

from tensorrt_lora.kernels.lora_add import lora_add
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW
from tests.support.lora_tables import make_lora_batch, make_lora_tables, touched

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-2, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_of_adapters_are_scaled_and_added_to_and_nothing_else_is_read_or_written(dtype: torch.dtype) -> None:
    ranks = [[3, 0, 16], [2, 5, 0]]
    extras = [[0, 0, GAIN_ROW], [BIAS_ROW | GAIN_ROW, BIAS_ROW, 0]]
    tables = make_lora_tables(in_features=4, output_sizes=[600, 9], ranks=ranks, extras=extras, dtype=dtype)
    token_slots = [0, -1, 2, 1, 0, -1]
    changed = touched(tables, token_slots)
    generator = torch.Generator().manual_seed(1)
    delta = torch.randn((6, 609), generator=generator).to(dtype).masked_fill(~changed, torch.nan)
    whole = torch.randn((6, 700), generator=generator).to(dtype)
    y = whole[:, 50:659].clone()

    lora_add(delta, tables, make_lora_batch(token_slots, 3), whole[:, 50:659])

    expected = torch.where(changed, y.double() + delta.double(), y.double())
    for token, slot in enumerate(token_slots):
        for module, columns in enumerate(tables.column_slices):
            if slot >= 0 and (gain := tables.extra_rows(slot, module)[1]) is not None:
                expected[token, columns] += gain.double() * y[token, columns].double()
    torch.testing.assert_close(whole[:, 50:659].double(), expected, rtol=0, atol=TOLERANCE[dtype])
    assert torch.equal(whole[:, 50:659][~changed], y[~changed])


@pytest.mark.parametrize("token_slots", [[], [-1, -1]])
def test_without_adapter_rows(token_slots: list[int]) -> None:
    tables = make_lora_tables(in_features=4, output_sizes=[8], ranks=[[3]])
    out = torch.randn(len(token_slots), 8)
    before = out.clone()
    lora_add(torch.full_like(out, torch.nan), tables, make_lora_batch(token_slots, 1), out)
    assert torch.equal(out, before)
