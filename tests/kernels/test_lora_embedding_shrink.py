"""lora_embedding_shrink against A's columns: the reference here, the Triton kernel under test_interpreter.py."""

import pytest
import torch

from tensorrt_lora.kernels.lora_embedding_shrink import lora_embedding_shrink
from tests.support.lora_tables import make_lora_batch, make_lora_tables, shrink_by_token

VOCAB = 50


@pytest.mark.parametrize(
    ("ranks", "token_slots"),
    [
        ([1], [0]),
        ([3, 16, 0], [1, -1, 2, 0, 1]),
        ([17, 100, 5], [token % 4 - 1 for token in range(70)]),
        ([0], [0, 0]),
        ([4], []),
        ([4], [-1]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_row_takes_its_column_of_a(ranks: list[int], token_slots: list[int], dtype: torch.dtype) -> None:
    tables = make_lora_tables(in_features=VOCAB, output_sizes=[8], ranks=[ranks], dtype=dtype)
    ids = torch.randint(0, VOCAB, (len(token_slots),), generator=torch.Generator().manual_seed(1))
    h = torch.full((1, 1, len(token_slots), tables.max_rank), torch.nan)

    lora_embedding_shrink(ids, tables, make_lora_batch(token_slots, len(ranks)), h)

    rank_of_token = torch.nn.functional.pad(tables.rank, (0, 1))[:, token_slots]
    written = torch.arange(tables.max_rank) < rank_of_token[:, :, None]
    assert torch.equal(~h[0].isnan(), written)
    one_hot = torch.nn.functional.one_hot(ids, VOCAB).to(dtype)
    assert torch.equal(h[0].nan_to_num(0.0).double(), shrink_by_token(one_hot, tables, token_slots))
