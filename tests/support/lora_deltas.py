"""Random `LoraDelta`s of adapters of every kind, NaN where nothing may be read, and `lora_add` to compare with."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tensorrt_lora.kernels.lora_add import lora_add
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tests.support.lora_tables import make_lora_batch, make_lora_tables, touched

BOTH = BIAS_ROW | GAIN_ROW
# By module and slot: A and B alone, extras alone and with them, within a page of rank rows and at its end, and nothing.
RANKS = [[1, 3, 17, 0, 0, 16, 3], [17, 0, 1, 3, 0, 15, 0], [0, 17, 3, 1, 16, 16, 0]]
EXTRAS = [
    [0, 0, 0, 0, BIAS_ROW, BOTH, GAIN_ROW],
    [0, 0, BIAS_ROW, 0, 0, BOTH, GAIN_ROW],
    [0, 0, GAIN_ROW, 0, 0, BOTH, BIAS_ROW],
]
ALL_SLOTS = [-1, 0, 1, 2, 3, 4, 5, 6, -1, 2, 2, 5]


def make_lora_delta(
    output_sizes: Sequence[int],
    token_slots: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> LoraDelta:
    """The delta of up to three modules for tokens of these slots."""
    modules = len(output_sizes)
    tables = make_lora_tables(
        in_features=1,
        output_sizes=output_sizes,
        ranks=RANKS[:modules],
        extras=EXTRAS[:modules],
        dtype=dtype,
        device=device,
    )
    values = torch.randn((len(token_slots), sum(output_sizes)), generator=torch.Generator().manual_seed(1))
    values = values.to(device, dtype).masked_fill(~touched(tables, token_slots), torch.nan)
    return LoraDelta(values, tables, make_lora_batch(token_slots, len(RANKS[0]), device=device))


def random_output(delta: LoraDelta, seed: int = 2) -> Tensor:
    """A base output, rows strided, with zeros of both signs: a negative one may not lose its own."""
    tokens, width = delta.values.shape
    y = torch.randn((tokens, width + 8), generator=torch.Generator().manual_seed(seed)).to(delta.values)[:, :width]
    y[:, ::5] = -0.0
    y[:, 1::5] = 0.0
    return y


def added(delta: LoraDelta, y: Tensor) -> Tensor:
    """`lora_add` to a copy of a base output."""
    total = y.clone()
    lora_add(delta.values, delta.tables, delta.batch, total)
    return total


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, signs of zeros too; False if there is a NaN."""
    as_integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.itemsize]
    return torch.equal(a.float(), b.float()) and torch.equal(a.view(as_integers), b.view(as_integers))
