"""lora_expand against a loop over tokens: the reference here, the Triton kernel under test_interpreter.py."""

import pytest
import torch

from tensorrt_lora.kernels.lora_add import lora_add
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW, LoraTables
from tensorrt_lora.kernels.lora_expand import lora_expand
from tests.support.lora_tables import expand_by_token, make_lora_batch, make_lora_tables, touched

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2, torch.float64: 1e-6}


def make_h(tables: LoraTables, token_slots: list[int], splits: int) -> torch.Tensor:
    """What a shrink leaves: random slices, NaN wherever it writes nothing."""
    shape = (splits, tables.num_modules, len(token_slots), tables.max_rank)
    h = torch.randn(shape, generator=torch.Generator().manual_seed(2)) * splits**-0.5
    rank_of_token = torch.nn.functional.pad(tables.rank, (0, 1))[:, token_slots]
    return h.masked_fill(torch.arange(tables.max_rank) >= rank_of_token[:, :, None], torch.nan)


CASES = [
    ((24,), [[1]], [0], 16, 1),
    ((40,), [[3, 8]], [1, -1, 0, 1, -1], 16, 2),
    ((96, 24), [[17, 64, 0], [64, 0, 3]], [0, 2, 1, -1, 0, 0, 2], 16, 1),
    ((136, 24, 40), [[8, 0, 1], [0, 5, 1], [17, 2, 0]], [2, 2, -1, 1, 0, 1, 2, 0, 1, 1, 1], 16, 3),
    ((64, 32, 32), [[16], [16], [16]], [0] * 17 + [-1] + [0] * 4, 16, 4),
    ((40, 96), [[3, 64], [64, 8]], ([0] * 3 + [1, -1] * 2) * 10, 64, 1),
    ((24, 130, 7), [[40, 1], [33, 48], [2, 7]], [token % 3 - 1 for token in range(69)], 64, 2),
    ((72,), [[100, 9]], [0, 1, 1, 0], 16, 2),
    ((72, 8), [[150, 9], [0, 140]], [0, 1, 1, -1], 16, 2),
]


BOTH = BIAS_ROW | GAIN_ROW
# Extra rows within a page of rank rows, at its start and across two; with and without a rank.
EXTRAS_CASES = [
    ((40,), [[3, 8, 0, 2]], [[BIAS_ROW, GAIN_ROW, BOTH, 0]], [1, -1, 0, 2, 3, -1], 16, 2),
    ((96, 24), [[16, 15, 0], [0, 32, 1]], [[BOTH, BOTH, BIAS_ROW], [0, BOTH, GAIN_ROW]], [0, 2, 1, -1, 0, 2], 16, 1),
    ((24, 130, 7), [[0, 1], [48, 31], [2, 0]], [[BOTH, 0], [BOTH, BIAS_ROW], [0, 0]], [-1, 0, 1] * 23, 64, 2),
    ((72,), [[0, 0]], [[BIAS_ROW, BOTH]], [0, 1, 1, -1], 16, 2),
    ((72, 8), [[150, 9], [0, 144]], [[GAIN_ROW, BOTH], [0, BOTH]], [0, 1, 1, -1], 16, 2),
]


@pytest.mark.parametrize(("output_sizes", "ranks", "extras", "token_slots", "tile_size", "splits"), [
    *((sizes, ranks, None, *rest) for sizes, ranks, *rest in CASES),
    *EXTRAS_CASES,
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_expand_equals_a_loop_over_tokens(
    output_sizes: tuple[int, ...],
    ranks: list[list[int]],
    extras: list[list[int]] | None,
    token_slots: list[int],
    tile_size: int,
    splits: int,
    dtype: torch.dtype,
) -> None:
    tables = make_lora_tables(in_features=8, output_sizes=output_sizes, ranks=ranks, extras=extras, dtype=dtype)
    batch = make_lora_batch(token_slots, tables.rank.shape[1], tile_size=tile_size)
    h = make_h(tables, token_slots, splits)
    base = torch.randn(
        (len(token_slots), sum(output_sizes)), generator=torch.Generator().manual_seed(3), dtype=torch.float32
    ).to(dtype)
    changed = touched(tables, token_slots)

    delta = torch.full_like(base, torch.nan)
    lora_expand(h, tables, batch, delta, accumulate=False)
    added = base.clone()
    lora_expand(h, tables, batch, added, accumulate=True)
    added_later = base.clone()
    lora_add(delta, tables, batch, added_later)

    assert torch.equal(~delta.isnan(), changed)
    expected = expand_by_token(h.sum(0), tables, token_slots)
    torch.testing.assert_close(delta[changed].double(), expected[changed], rtol=0, atol=TOLERANCE[dtype])
    expected = expand_by_token(h.sum(0), tables, token_slots, base)
    torch.testing.assert_close(added.double(), expected, rtol=0, atol=TOLERANCE[dtype])
    assert torch.equal(added, added_later)  # bit for bit: delta is rounded before it is added
    assert torch.equal(added[~changed], base[~changed])


def test_slices_are_summed_in_order_in_float32() -> None:
    tables = make_lora_tables(in_features=8, output_sizes=[16], ranks=[[1]])
    tables.b_pool.fill_(1.0)
    tables.scale.fill_(1.0)
    h = torch.tensor([1.0, 2.0**-24, 2.0**-24, -1.0]).view(4, 1, 1, 1).expand(4, 1, 1, 16).contiguous()
    out = torch.full((1, 16), torch.nan)
    lora_expand(h, tables, make_lora_batch([0], 1), out, accumulate=False)
    assert (out == 0).all()  # any other order keeps what is lost beside the 1.0


@pytest.mark.parametrize("accumulate", [True, False])
def test_strided_rows_of_out(accumulate: bool) -> None:
    extras = [[BOTH, 0], [0, BIAS_ROW]]
    tables = make_lora_tables(in_features=8, output_sizes=[24, 8], ranks=[[5, 3], [0, 20]], extras=extras)
    token_slots = [1, -1, 0, 1]
    h = make_h(tables, token_slots, splits=1)
    whole = torch.randn(4, 60, generator=torch.Generator().manual_seed(3))
    before = whole.clone()

    lora_expand(h, tables, make_lora_batch(token_slots, 2), whole[:, 20:52], accumulate)

    changed = touched(tables, token_slots)
    expected = expand_by_token(h[0], tables, token_slots, before[:, 20:52])
    if not accumulate:
        expected = torch.where(changed, expand_by_token(h[0], tables, token_slots), before[:, 20:52].double())
    torch.testing.assert_close(whole[:, 20:52].double(), expected, rtol=0, atol=1e-5)
    assert torch.equal(whole[:, :20], before[:, :20]) and torch.equal(whole[:, 52:], before[:, 52:])


@pytest.mark.parametrize("token_slots", [[], [-1], [-1] * 20])
def test_without_adapter_rows(token_slots: list[int]) -> None:
    tables = make_lora_tables(in_features=8, output_sizes=[24], ranks=[[4]])
    batch = make_lora_batch(token_slots, 1)
    h = make_h(tables, token_slots, splits=1)
    base = torch.randn(len(token_slots), 24)

    out = base.clone()
    lora_expand(h, tables, batch, out, accumulate=True)
    assert torch.equal(out, base)
    lora_expand(h, tables, batch, out, accumulate=False)
    assert torch.equal(out, base)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_reference_dtypes(dtype: torch.dtype) -> None:
    tables = make_lora_tables(in_features=8, output_sizes=[24], ranks=[[4, 17]], extras=[[0, BOTH]], dtype=dtype)
    h = make_h(tables, [1, 0, 1], splits=2)
    out = torch.full((3, 24), torch.nan, dtype=dtype)
    lora_expand(h, tables, make_lora_batch([1, 0, 1], 2), out, accumulate=False)
    expected = expand_by_token(h[0] + h[1], tables, [1, 0, 1])
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOLERANCE[dtype])
