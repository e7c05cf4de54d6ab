"""The batch builder: every token of an adapter lies in exactly one tile of its slot, and the bounds hold."""

import numpy as np
import pytest
import torch

from tensorrt_lora.kernels.lora_batch import (
    BIAS_ROW,
    DECODE_TILE_SIZE,
    GAIN_ROW,
    PREFILL_TILE_SIZE,
    LoraBatchBuffers,
    build_lora_batch_arrays,
    choose_tile_size,
    max_tiles,
)
from tests.support.lora_tables import make_lora_batch, make_lora_tables

FIELDS = ("token_slots", "sorted_tokens", "tile_slot", "tile_start", "tile_len")


@pytest.mark.parametrize("seed", range(100))
def test_tiles_partition_the_adapter_rows(seed: int) -> None:
    random = np.random.default_rng(seed)
    num_slots, tile_size = int(random.integers(1, 12)), int(random.choice([1, 2, 3, 16, 64]))
    num_present = int(random.integers(1, num_slots + 2))
    present = random.choice(np.arange(-1, num_slots), size=num_present, replace=False)
    token_slots = random.choice(present, size=int(random.integers(0, 150))).astype(np.int32)
    num_tokens = len(token_slots)
    capacity = max_tiles(num_tokens, num_slots, tile_size) + int(random.integers(0, 3))

    batch = build_lora_batch_arrays(token_slots, num_slots, tile_size, capacity)

    assert all(array.dtype == np.int32 for array in batch)
    assert np.array_equal(batch.token_slots, token_slots)
    base_last = np.where(token_slots < 0, num_slots, token_slots)
    assert batch.sorted_tokens.tolist() == sorted(range(num_tokens), key=lambda token: base_last[token])
    used = int((batch.tile_slot >= 0).sum())
    assert used <= max_tiles(num_tokens, num_slots, tile_size)
    assert (batch.tile_slot[used:] == -1).all() and (batch.tile_slot[:used] >= 0).all()
    assert ((batch.tile_len[:used] >= 1) & (batch.tile_len[:used] <= tile_size)).all()
    covered: list[int] = []
    for slot, start, length in zip(*(array[:used] for array in batch[2:]), strict=True):
        tokens = batch.sorted_tokens[start : start + length]
        assert (token_slots[tokens] == slot).all()
        covered.extend(tokens.tolist())
    assert sorted(covered) == np.flatnonzero(token_slots >= 0).tolist()


@pytest.mark.parametrize("tile_size", [DECODE_TILE_SIZE, PREFILL_TILE_SIZE])
@pytest.mark.parametrize("num_slots", [1, 4, 9])
def test_max_tiles_holds_for_the_worst_split_of_tokens(num_slots: int, tile_size: int) -> None:
    for num_tokens in range(1, 200):
        # As many slots as possible hold one token more than whole tiles, which is what wastes most of them.
        lone = min(num_slots, num_tokens)
        token_slots = [min(token, lone - 1) for token in range(num_tokens)]
        bound = max_tiles(num_tokens, num_slots, tile_size)
        batch = build_lora_batch_arrays(token_slots, num_slots, tile_size, bound)
        assert (batch.tile_slot >= 0).sum() == lone + (num_tokens - lone) // tile_size <= bound


def test_segments_are_the_tokens_of_each_slot_in_order() -> None:
    batch = make_lora_batch([2, -1, 0, 2, 0, -1, 2], 3, tile_size=2)
    assert [(slot, tokens.tolist()) for slot, tokens in batch.segments()] == [(0, [2, 4]), (2, [0, 3, 6])]


def test_buffers_keep_their_addresses_and_clear_the_tail() -> None:
    buffers = LoraBatchBuffers(max_num_tokens=300, num_slots=5, device=torch.device("cpu"))
    many = buffers.write([0, 1, 2, 3, 4, -1, 0, 1])
    addresses = [getattr(many, name).data_ptr() for name in FIELDS]
    buffers.write([4] * 300)

    few = buffers.write([3, -1, -1, -1, -1, -1, -1, -1])

    assert [getattr(few, name).data_ptr() for name in FIELDS] == addresses
    assert few.tile_slot.tolist() == many.tile_slot.tolist() == [3, -1, -1, -1, -1]
    assert few.tile_start.tolist() == [0] * 5 and few.tile_len.tolist() == [1, 0, 0, 0, 0]
    assert few.max_tiles == 5


@pytest.mark.parametrize("num_tokens", [0, 1, 128, 129, 300])
def test_written_batch_equals_the_built_arrays(num_tokens: int) -> None:
    buffers = LoraBatchBuffers(max_num_tokens=300, num_slots=5, device=torch.device("cpu"))
    token_slots = np.arange(num_tokens, dtype=np.int32) * 7 % 6 - 1

    written = buffers.write(token_slots)

    built = make_lora_batch(token_slots, 5)
    assert written.tile_size == built.tile_size == choose_tile_size(num_tokens)
    for name in FIELDS:
        assert torch.equal(getattr(written, name), getattr(built, name))


def test_pool_rows_follow_the_page_table() -> None:
    tables = make_lora_tables(in_features=4, output_sizes=[4], ranks=[[40]])
    tables.page_table = torch.tensor([[5, 0, 2]], dtype=torch.int32)
    assert tables.pool_rows(0, 18).tolist() == [*range(80, 96), 0, 1]
    assert tables.pool_rows(0, 0).tolist() == []


def test_column_slices_lie_side_by_side() -> None:
    tables = make_lora_tables(in_features=4, output_sizes=[8, 2, 3], ranks=[[1], [1], [1]])
    assert tables.column_slices == [slice(0, 8), slice(8, 10), slice(10, 13)]


def test_extra_rows_follow_the_rank_rows() -> None:
    extras = [[BIAS_ROW | GAIN_ROW, GAIN_ROW], [0, BIAS_ROW]]
    tables = make_lora_tables(in_features=4, output_sizes=[8, 2], ranks=[[16, 15], [4, 0]], extras=extras)
    tables.page_table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)
    tables.b_pool = torch.arange(64.0)[:, None] + torch.tensor([0.0] * 8 + [100.0] * 2)
    bias, gain = tables.extra_rows(0, 0)
    assert (bias == 16).all() and (gain == 17).all()
    bias, gain = tables.extra_rows(1, 0)
    assert bias is None and (gain == 15).all()
    assert tables.extra_rows(0, 1) == (None, None)
    bias, gain = tables.extra_rows(1, 1)
    assert (bias == 100).all() and gain is None
