"""What a graph can know of a batch's adapters, and which of it is told apart.

Asked of a `LoraPlanTable` by `CudaGraphLoraManager`, measured by `tensorrt-lora tune`. Knows no adapters.
"""

from collections.abc import Sequence
from typing import NamedTuple

# Few: with one and several adapters, each is a graph more for every captured size.
_RANKS = (32,)


class BatchKind(NamedTuple):
    """A batch with adapters."""

    tokens: int  # rows, padding included
    many: bool  # more than one distinct adapter
    rank: int  # the largest among them


def rank_kinds(max_rank: int) -> list[int]:
    """The largest ranks of a batch that are told apart in an engine, rising: a batch counts as the next one up."""
    return [*(rank for rank in _RANKS if rank < max_rank), max_rank]


def batch_kinds(tokens: int, num_adapters: int, ranks: Sequence[int]) -> list[BatchKind]:
    """All kinds that batches of `tokens` rows can be of, with up to `num_adapters` distinct adapters."""
    can_be_many = tokens > 1 and num_adapters > 1
    return [BatchKind(tokens, many, rank) for many in (False, True)[: 1 + can_be_many] for rank in ranks]
