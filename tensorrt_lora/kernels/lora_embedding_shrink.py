"""h = x A where x is the one-hot vector of a token id: the shrink of a LoRA on an embedding.

Called by `lora/lora_branch.py`; leaves `h` as `lora_shrink` does, so that the rest of the branch is shared.
"""

import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.lora_batch import RANK_PAGE, LoraBatch, LoraTables


def lora_embedding_shrink(input_ids: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor) -> None:
    """out[0, 0, t] = A[slot of t][:, input_ids[t]], as float32.

    Args:
        input_ids: [T] int, contiguous, each within the width of A, which is the vocabulary.
        tables: of one module, the embedding.
        out: [1, 1, T, max_rank] float32, contiguous. Rows of base tokens and ranks beyond those of the token's
            adapter are left unwritten.
    """
    assert input_ids.shape == batch.token_slots.shape and input_ids.is_contiguous()
    assert out.is_contiguous() and out.shape == (1, 1, input_ids.shape[0], tables.max_rank)
    if use_triton(tables.a_pool):
        _lora_embedding_shrink_triton(input_ids, tables, batch, out)
    else:
        lora_embedding_shrink_reference(input_ids, tables, batch, out)


def lora_embedding_shrink_reference(input_ids: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor) -> None:
    """The same in torch."""
    ranks = tables.rank[0].tolist()
    for slot, tokens in batch.segments():
        a = tables.a_pool[0].index_select(0, tables.pool_rows(slot, ranks[slot]))
        out[0, 0, tokens, : ranks[slot]] = a[:, input_ids[tokens]].T.to(out.dtype)


def _lora_embedding_shrink_triton(input_ids: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor) -> None:
    tokens = input_ids.shape[0]
    if tokens == 0:
        return
    _lora_embedding_shrink_kernel[(tokens,)](
        input_ids,
        tables.a_pool,
        out,
        tables.page_table,
        tables.rank,
        batch.token_slots,
        tables.a_pool.stride(1),
        tables.page_table.stride(0),
        MAX_RANK=tables.max_rank,
        PAGE=RANK_PAGE,
        BLOCK_R=triton.next_power_of_2(tables.max_rank),
        num_warps=1,
    )


@triton.jit(
    do_not_specialize=["page_stride"],
    do_not_specialize_on_alignment=["input_ids", "page_table", "rank", "token_slots"],
)
def _lora_embedding_shrink_kernel(
    input_ids,
    a_pool,
    out,
    page_table,
    rank,
    token_slots,
    a_row_stride,
    page_stride,
    MAX_RANK: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """One program: all rank rows of one token. Each is a read of its own, in a cache line of its own."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(token_slots + token)
    token_id = tl.load(input_ids + token)
    if slot < 0:
        return
    rank_row = tl.arange(0, BLOCK_R)
    live_row = rank_row < tl.load(rank + slot)
    page = tl.load(page_table + slot * page_stride + rank_row // PAGE, mask=rank_row < MAX_RANK, other=0)
    pool_row = (page * PAGE + rank_row % PAGE).to(tl.int64)
    a_column = tl.load(a_pool + pool_row * a_row_stride + token_id, mask=live_row, other=0.0)
    tl.store(out + token * MAX_RANK + rank_row, a_column.to(tl.float32), mask=live_row)
