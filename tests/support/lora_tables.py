"""Random `LoraTables` and `LoraBatch`es for tests, and what LoRA means: a loop over tokens in float64."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tensorrt_lora.kernels.lora_batch import (
    BIAS_ROW,
    GAIN_ROW,
    MAX_EXTRA_ROWS,
    RANK_PAGE,
    LoraBatch,
    LoraTables,
    build_lora_batch_arrays,
    choose_tile_size,
    max_tiles,
    pages_for_rows,
)


def make_lora_tables(
    *,
    in_features: int,
    output_sizes: Sequence[int],
    ranks: Sequence[Sequence[int]],
    extras: Sequence[Sequence[int]] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    max_rank: int | None = None,
    seed: int = 0,
) -> LoraTables:
    """Tables with `ranks[module][slot]`, the pages of each slot in random order; other rows are NaN.

    Weights are scaled so that h and delta are of order 1 for x of order 1. `max_rank` defaults to the largest
    rank, rounded up to whole pages. `extras[module][slot]` are the flags of `LoraTables.extras`, none by default.
    """
    generator = torch.Generator().manual_seed(seed)
    largest = max(max(module) for module in ranks)
    num_modules, num_slots = len(output_sizes), len(ranks[0])
    extras = extras or [[0] * num_slots] * num_modules
    rank_pages = pages_for_rows(max_rank or largest) or 1
    has_extras = any(map(any, extras))
    max_pages = pages_for_rows(rank_pages * RANK_PAGE + MAX_EXTRA_ROWS) if has_extras else rank_pages
    num_pages = num_slots * max_pages + 1
    pages = torch.randperm(num_pages, generator=generator)[: num_slots * max_pages]
    tables = LoraTables(
        a_pool=torch.full((num_modules, num_pages * RANK_PAGE, in_features), torch.nan, dtype=torch.float32),
        b_pool=torch.full((num_pages * RANK_PAGE, sum(output_sizes)), torch.nan, dtype=torch.float32),
        page_table=pages.view(num_slots, max_pages).int(),
        rank=torch.tensor(ranks, dtype=torch.int32),
        scale=torch.rand((num_modules, num_slots), generator=generator) + 0.5,
        extras=torch.tensor(extras, dtype=torch.int32),
        output_sizes=tuple(output_sizes),
        max_rank=rank_pages * RANK_PAGE,
    )
    for module, columns in enumerate(tables.column_slices):
        for slot, rank in enumerate(ranks[module]):
            rows = tables.pool_rows(slot, rank)
            a = torch.randn(rank, in_features, generator=generator)
            b = torch.randn(rank, output_sizes[module], generator=generator)
            tables.a_pool[module, rows] = a * in_features**-0.5
            tables.b_pool[rows, columns] = b * max(rank, 1) ** -0.5
            flags = extras[module][slot]
            extra_rows = tables.pool_rows(slot, rank + flags.bit_count())[rank:]
            extra = torch.randn(len(extra_rows), output_sizes[module], generator=generator)
            extra[-1:] *= 0.25 if flags & GAIN_ROW else 1.0
            tables.b_pool[extra_rows, columns] = extra
    tables.a_pool = tables.a_pool.to(device, dtype)
    tables.b_pool = tables.b_pool.to(device, dtype)
    for name in ("page_table", "rank", "scale", "extras"):
        setattr(tables, name, getattr(tables, name).to(device))
    return tables


def make_lora_batch(
    token_slots: Sequence[int],
    num_slots: int,
    *,
    tile_size: int | None = None,
    device: torch.device | str = "cpu",
) -> LoraBatch:
    """The batch of these tokens; the tile size is that of `choose_tile_size` unless given."""
    tile_size = tile_size or choose_tile_size(len(token_slots))
    tiles = max_tiles(len(token_slots), num_slots, tile_size)
    arrays = build_lora_batch_arrays(token_slots, num_slots, tile_size, capacity=tiles)
    tensors = [torch.from_numpy(array).to(device) for array in arrays]
    return LoraBatch(*tensors, tile_size=tile_size, max_tiles=tiles)


def shrink_by_token(x: Tensor, tables: LoraTables, token_slots: Sequence[int]) -> Tensor:
    """[modules, T, max_rank] float64: x A of every token, zeros where `lora_shrink` writes nothing."""
    h = torch.zeros((tables.num_modules, x.shape[0], tables.max_rank), dtype=torch.float64, device=x.device)
    for token, slot in enumerate(token_slots):
        for module in range(tables.num_modules if slot >= 0 else 0):
            rank = int(tables.rank[module, slot])
            a = tables.a_pool[module, tables.pool_rows(slot, rank)].double()
            h[module, token, :rank] = a @ x[token].double()
    return h


def expand_by_token(h: Tensor, tables: LoraTables, token_slots: Sequence[int], y: Tensor | None = None) -> Tensor:
    """[T, sum(out)] float64: what becomes of the base output `y` (zeros by default) for h [modules, T, max_rank]."""
    shape = (h.shape[1], sum(tables.output_sizes))
    out = torch.zeros(shape, dtype=torch.float64, device=h.device) if y is None else y.double().clone()
    for token, slot in enumerate(token_slots):
        for module, columns in enumerate(tables.column_slices if slot >= 0 else ()):
            rank, flags = int(tables.rank[module, slot]), int(tables.extras[module, slot])
            rows = tables.b_pool[tables.pool_rows(slot, rank + flags.bit_count()), columns].double()
            delta = tables.scale[module, slot].double() * h[module, token, :rank].double() @ rows[:rank]
            if flags & GAIN_ROW:
                delta *= 1 + rows[-1]
                out[token, columns] += rows[-1] * out[token, columns]
            if flags & BIAS_ROW:
                delta += rows[rank]
            out[token, columns] += delta
    return out


def touched(tables: LoraTables, token_slots: Sequence[int]) -> Tensor:
    """[T, sum(out)] bool: the columns of each token that its adapter changes."""
    modules = (tables.rank > 0) | (tables.extras > 0)
    with_base = torch.nn.functional.pad(modules, (0, 1))  # slot -1, the base
    sizes = torch.tensor(tables.output_sizes, device=modules.device)
    return with_base.T[list(token_slots)].repeat_interleave(sizes, dim=1)
