"""The data that the LoRA kernels read: weight tables of a LoraLayer, and which token uses which slot.

Built by `lora/` (tables when it allocates slots, a batch once a step) and read by `lora_shrink` and
`lora_expand`. It knows nothing of requests, adapters or modules, and never synchronises with the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tensorrt_lora.utils.pinned_staging import PinnedStaging

RANK_PAGE = 16
"""Rank rows in a page, the unit in which adapters take room in the pools."""

NUM_LORA_COUNTERS = 4096
"""One, and one for each tile of tokens and block of rank rows of a `lora_linear`."""

MAX_MODULES = 3
"""Modules of a LoraLayer at most: q, k and v."""

BIAS_ROW = 1
GAIN_ROW = 2
MAX_EXTRA_ROWS = 2
"""Bits of `LoraTables.extras`, and how many rows they stand for at most."""

DECODE_TILE_SIZE = 16
PREFILL_TILE_SIZE = 64
_MAX_DECODE_TOKENS = 128

IntArray = npt.NDArray[np.int32]


@dataclass(slots=True)
class LoraTables:
    """Weights of one LoraLayer (modules that read the same x) of one decoder layer, at stable addresses."""

    a_pool: Tensor
    """[modules, rows, in], the model's dtype; rows = pages * RANK_PAGE."""
    b_pool: Tensor
    """[rows, sum(out)], the model's dtype; the modules' columns side by side."""
    page_table: Tensor
    """[slots, max_pages] int32: row r of slot s is pool row page_table[s, r // 16] * 16 + r % 16. Room for the
    extra rows of a module of max_rank too, where adapters have any."""
    rank: Tensor
    """[modules, slots] int32; 0 = no A and B for the module."""
    scale: Tensor
    """[modules, slots] float32, applied to the shrink's result."""
    extras: Tensor
    """[modules, slots] int32: which rows follow the rank rows in `b_pool`, first a bias (bit BIAS_ROW), then DoRA's
    g - 1 (bit GAIN_ROW). Such a module gives y + (g - 1) y + (g delta + bias). With no rank either, it is untouched."""
    output_sizes: tuple[int, ...]
    max_rank: int
    """Multiple of RANK_PAGE, at least every rank."""
    counters: Tensor | None = None
    """[NUM_LORA_COUNTERS] int32, zeros between kernels: what `lora_linear` counts in. All layers may share them, for
    kernels on one stream follow each other; None where that op is not used."""

    @property
    def num_modules(self) -> int:
        return len(self.output_sizes)

    @property
    def column_slices(self) -> list[slice]:
        """The columns of each module in `b_pool` and in the output."""
        ends = accumulate(self.output_sizes)
        return [slice(end - size, end) for end, size in zip(ends, self.output_sizes, strict=True)]

    def pool_rows(self, slot: int, rank: int) -> Tensor:
        """[rank] int64: the pool rows of the slot's first `rank` rows."""
        pages = self.page_table[slot, : pages_for_rows(rank), None].long()
        return (pages * RANK_PAGE + torch.arange(RANK_PAGE, device=pages.device)).flatten()[:rank]

    def extra_rows(self, slot: int, module: int) -> tuple[Tensor | None, Tensor | None]:
        """(bias, gain) of a module in a slot, each [out] in the tables' dtype or None; reads the device."""
        rank, flags = int(self.rank[module, slot]), int(self.extras[module, slot])
        rows = self.pool_rows(slot, rank + flags.bit_count())[rank:]
        extra = iter(self.b_pool[rows, self.column_slices[module]])
        return next(extra) if flags & BIAS_ROW else None, next(extra) if flags & GAIN_ROW else None


@dataclass(slots=True)
class LoraBatch:
    """Tokens of one step grouped by slot, in tiles of at most `tile_size` tokens that share a slot."""

    token_slots: Tensor
    """[T] int32, -1 = base row."""
    sorted_tokens: Tensor
    """[T] int32: token ids ordered by slot (stable), base rows last."""
    tile_slot: Tensor
    """[max_tiles] int32: slot of a tile, -1 = tile not in use (the whole tail)."""
    tile_start: Tensor
    """[max_tiles] int32: first index into `sorted_tokens`."""
    tile_len: Tensor
    """[max_tiles] int32: tokens in the tile, 1..tile_size; 0 where not in use."""
    tile_size: int
    max_tiles: int
    """How many tiles T tokens can need: the kernels' grid, a function of T alone."""

    def segments(self) -> list[tuple[int, Tensor]]:
        """(slot, token ids) of each slot present, what the references loop over; reads the device."""
        segments: list[tuple[int, int, int]] = []
        tiles = zip(self.tile_slot.tolist(), self.tile_start.tolist(), self.tile_len.tolist(), strict=True)
        for slot, start, length in tiles:
            if slot < 0:
                break
            if segments and segments[-1][0] == slot:
                segments[-1] = (slot, segments[-1][1], start + length)
            else:
                segments.append((slot, start, start + length))
        tokens = self.sorted_tokens.long()
        return [(slot, tokens[start:end]) for slot, start, end in segments]


class LoraBatchArrays(NamedTuple):
    """Host side of a LoraBatch: the same fields as int32 arrays."""

    token_slots: IntArray
    sorted_tokens: IntArray
    tile_slot: IntArray
    tile_start: IntArray
    tile_len: IntArray


def pages_for_rows(rows: int) -> int:
    """Pages of `RANK_PAGE` rows that hold `rows` rows."""
    return -(-rows // RANK_PAGE)


def choose_tile_size(num_tokens: int) -> int:
    """Tokens a tile: few where rows are few and spread over adapters, many where they feed tensor cores."""
    return DECODE_TILE_SIZE if num_tokens <= _MAX_DECODE_TOKENS else PREFILL_TILE_SIZE


def max_tiles(num_tokens: int, num_slots: int, tile_size: int) -> int:
    """Upper bound of the tiles of `num_tokens` tokens, whatever slots they use.

    A slot of n >= 1 tokens takes ceil(n / tile_size) = 1 + (n - 1) // tile_size tiles. The g <= min(T, slots)
    slots present have at most T tokens together, so all take at most g + (T - g) // tile_size tiles.
    """
    return num_tokens // tile_size + min(num_tokens, num_slots)


def build_lora_batch_arrays(
    token_slots: Sequence[int] | IntArray, num_slots: int, tile_size: int, capacity: int
) -> LoraBatchArrays:
    """Sort the tokens by slot and cut each slot's tokens into tiles.

    `token_slots` holds each token's slot, -1 for base rows; `capacity` is the length of the three tile
    arrays, at least `max_tiles` of these tokens. Tiles never cross a slot, and base rows have none.
    """
    slots = np.asarray(token_slots, dtype=np.int32)
    assert capacity >= max_tiles(len(slots), num_slots, tile_size)
    assert len(slots) == 0 or (slots.min() >= -1 and slots.max() < num_slots)

    keys = np.where(slots < 0, num_slots, slots)
    sorted_tokens = np.argsort(keys, kind="stable").astype(np.int32)
    counts = np.bincount(keys, minlength=num_slots + 1)[:num_slots]
    first_token = np.cumsum(counts) - counts

    tiles_per_slot = -(-counts // tile_size)
    tile_slot = np.repeat(np.arange(num_slots), tiles_per_slot)
    num_tiles = len(tile_slot)
    first_tile = np.cumsum(tiles_per_slot) - tiles_per_slot
    offset = (np.arange(num_tiles) - first_tile[tile_slot]) * tile_size

    def padded(values: npt.NDArray[np.int64], fill: int) -> IntArray:
        array = np.full(capacity, fill, dtype=np.int32)
        array[:num_tiles] = values
        return array

    return LoraBatchArrays(
        token_slots=slots,
        sorted_tokens=sorted_tokens,
        tile_slot=padded(tile_slot, -1),
        tile_start=padded(first_token[tile_slot] + offset, 0),
        tile_len=padded(np.minimum(counts[tile_slot] - offset, tile_size), 0),
    )


class LoraBatchBuffers:
    """The device side of every step's batch: one buffer, so that one copy a step fills it.

    Where a field lies depends on the number of tokens alone, so a graph captured for T tokens finds the batch
    of every later step of T tokens where it read the first.
    """

    def __init__(self, max_num_tokens: int, num_slots: int, device: torch.device) -> None:
        self._max_num_tokens = max_num_tokens
        self._num_slots = num_slots
        # The decode tile is the smaller one and needs the most tiles, so it bounds both.
        capacity = 2 * max_num_tokens + 3 * max_tiles(max_num_tokens, num_slots, DECODE_TILE_SIZE)
        self._buffer = torch.zeros(capacity, dtype=torch.int32, device=device)
        self._staging = PinnedStaging(self._buffer)

    def write(self, token_slots: Sequence[int] | IntArray) -> LoraBatch:
        """Build the batch of tokens with these slots (-1 for base and padding rows), in place on the device.

        Does not wait for the device. The views returned are the same for every step of as many tokens.
        """
        num_tokens = len(token_slots)
        assert num_tokens <= self._max_num_tokens
        tile_size = choose_tile_size(num_tokens)
        tiles = max_tiles(num_tokens, self._num_slots, tile_size)
        arrays = build_lora_batch_arrays(token_slots, self._num_slots, tile_size, capacity=tiles)
        self._staging.copy(np.concatenate(arrays))
        lengths = [num_tokens, num_tokens, tiles, tiles, tiles]
        slots, tokens, tile_slot, tile_start, tile_len = self._buffer[: sum(lengths)].split(lengths)
        return LoraBatch(slots, tokens, tile_slot, tile_start, tile_len, tile_size, tiles)
