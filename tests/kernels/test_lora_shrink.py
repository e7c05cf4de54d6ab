"""lora_shrink against a loop over tokens: the reference here, the Triton kernel under test_interpreter.py."""

import pytest
import torch

from tensorrt_lora.kernels.lora_batch import LoraTables
from tensorrt_lora.kernels.lora_shrink import lora_shrink, num_splits
from tests.support.lora_tables import make_lora_batch, make_lora_tables, shrink_by_token

TOLERANCE = 1e-5  # whatever the dtype: values of order 1, accumulated in float32 and not rounded afterwards


def run_shrink(
    x: torch.Tensor, tables: LoraTables, token_slots: list[int], tile_size: int, splits: int
) -> torch.Tensor:
    """Sum of the slices, zeros where nothing may be written; checks that nothing is."""
    batch = make_lora_batch(token_slots, tables.rank.shape[1], tile_size=tile_size)
    out = torch.full((splits, tables.num_modules, len(token_slots), tables.max_rank), torch.nan)
    lora_shrink(x, tables, batch, out)
    rank_of_token = torch.nn.functional.pad(tables.rank, (0, 1))[:, token_slots]
    written = torch.arange(tables.max_rank) < rank_of_token[:, :, None]
    assert torch.equal(~out.isnan(), written.expand_as(out))
    return out.nan_to_num(0.0).sum(0)


@pytest.mark.parametrize(
    ("in_features", "ranks", "token_slots", "tile_size", "splits"),
    [
        (24, [[1]], [0], 16, 1),
        (40, [[3, 8]], [1, -1, 0, 1, -1], 16, 2),
        (96, [[17, 64, 0], [64, 0, 3]], [0, 2, 1, -1, 0, 0, 2], 16, 1),
        (264, [[8, 0, 1], [0, 5, 1], [17, 2, 0]], [2, 2, -1, 1, 0, 1, 2, 0, 1, 1, 1], 16, 3),
        (256, [[16], [16], [16]], [0] * 17 + [-1] + [0] * 4, 16, 4),
        (520, [[1, 16]], [-1, 1, 0, 1], 16, 4),
        (40, [[3, 64], [64, 8]], ([0] * 3 + [1, -1] * 2) * 10, 64, 1),
        (136, [[40, 1], [33, 48], [2, 7]], [token % 3 - 1 for token in range(69)], 64, 2),
        (72, [[100, 9]], [0, 1, 1, 0], 16, 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_shrink_equals_a_loop_over_tokens(
    in_features: int,
    ranks: list[list[int]],
    token_slots: list[int],
    tile_size: int,
    splits: int,
    dtype: torch.dtype,
) -> None:
    output_sizes = [8] * len(ranks)
    tables = make_lora_tables(in_features=in_features, output_sizes=output_sizes, ranks=ranks, dtype=dtype)
    x = torch.randn(len(token_slots), in_features, generator=torch.Generator().manual_seed(1)).to(dtype)

    h = run_shrink(x, tables, token_slots, tile_size, splits)

    expected = shrink_by_token(x, tables, token_slots)
    torch.testing.assert_close(h.double(), expected, rtol=0, atol=TOLERANCE)


def test_more_slices_than_columns_to_share_leave_zeros() -> None:
    tables = make_lora_tables(in_features=24, output_sizes=[8], ranks=[[4]])
    x = torch.randn(2, 24, generator=torch.Generator().manual_seed(1))
    h = run_shrink(x, tables, [0, 0], 16, splits=4)
    torch.testing.assert_close(h.double(), shrink_by_token(x, tables, [0, 0]), rtol=0, atol=TOLERANCE)


def test_strided_rows_of_x() -> None:
    tables = make_lora_tables(in_features=40, output_sizes=[8], ranks=[[5, 3]])
    x = torch.randn(4, 100, generator=torch.Generator().manual_seed(1))[:, 30:70]
    h = run_shrink(x, tables, [1, 0, -1, 1], 16, splits=1)
    torch.testing.assert_close(h.double(), shrink_by_token(x, tables, [1, 0, -1, 1]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("token_slots", [[], [-1], [-1] * 20])
def test_without_adapter_rows_nothing_is_written(token_slots: list[int]) -> None:
    tables = make_lora_tables(in_features=24, output_sizes=[8], ranks=[[4]])
    run_shrink(torch.randn(len(token_slots), 24), tables, token_slots, 16, splits=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_reference_dtypes(dtype: torch.dtype) -> None:
    tables = make_lora_tables(in_features=96, output_sizes=[8], ranks=[[4, 17]], dtype=dtype)
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    h = run_shrink(x, tables, [1, 0, 1], 16, splits=2)
    torch.testing.assert_close(h.double(), shrink_by_token(x, tables, [1, 0, 1]), rtol=0, atol=TOLERANCE)


def test_num_splits() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert num_splits(1, 5120, cpu) == 1
    assert [num_splits(1, width, cuda) for width in (64, 1024, 5120, 8192, 25600)] == [1, 4, 14, 16, 16]
    assert [num_splits(tokens, 8192, cuda) for tokens in (0, 32, 64, 128, 256, 512, 1024, 8192)] == [
        *(16, 16, 8, 8, 4, 4, 4, 2)
    ]
    counts = {num_splits(tokens, width, cuda) for tokens in range(129, 20_000) for width in (5120, 12_288, 25_600)}
    assert counts == {1, 2, 4, 8}, "few kernels for steps of any length"
