"""The page tables of a step as FlashInfer reads them, and the scratch memory that its plans take."""

import pytest
import torch

from tensorrt_lora.attention_backend.flashinfer_workspace import StepBuffer, float_workspace_bytes, prefill_graph_bytes
from tensorrt_lora.attention_backend.interface import AttentionBatch

PAGE_SIZE = 4


def make_buffer() -> StepBuffer:
    device = torch.device("cpu")
    return StepBuffer(max_num_tokens=16, max_num_requests=5, max_page_ids=40, num_kv_heads=8, device=device)


def test_writes_what_flashinfer_reads() -> None:
    # A chunk of 3 tokens after 4, a token that opens a page, one that fills a page; page lists may be longer.
    batch = AttentionBatch(1, [3, 1, 1], [7, 5, 8], [[9, 3, 7], [2, 6], [5, 4]])
    buffer = make_buffer()
    host = buffer.write(batch, PAGE_SIZE)
    device = buffer.views(5, 3)
    for arrays in (host, device):
        assert arrays.cache_slots.tolist() == [12, 13, 14, 24, 19]
        assert arrays.indptr.tolist() == [0, 2, 4, 6]
        assert arrays.last_page_len.tolist() == [3, 1, 4]
        assert arrays.slice_tokens.tolist() == [64]
        assert arrays.page_ids[:6].tolist() == [9, 3, 2, 6, 5, 4]


def test_padding_rows_sit_on_page_0() -> None:
    buffer = make_buffer()
    buffer.write(AttentionBatch(0, [1, 1, 1], [6, 1, 1], [[1, 2], [0], [0]]), PAGE_SIZE)
    views = buffer.views(3, 3)
    assert views.cache_slots.tolist() == [9, 0, 0]
    assert views.last_page_len.tolist() == [2, 1, 1]
    assert views.page_ids[:4].tolist() == [1, 2, 0, 0]


def test_requests_of_no_tokens_have_no_pages() -> None:
    buffer = make_buffer()
    batch = AttentionBatch(5, [3, 1, 6, 0, 0], [7, 5, 6, 0, 0], [[9, 3], [2, 6], [0] * 6, [], []])
    host = buffer.write(batch, PAGE_SIZE)
    assert host.cache_slots.tolist() == [12, 13, 14, 24, 0, 1, 2, 3, 0, 1]  # the padding goes round page 0
    assert host.indptr.tolist() == [0, 2, 4, 6, 6, 6]
    assert host.page_ids.tolist() == [9, 3, 2, 6, 0, 0]


def test_addresses_depend_on_the_sizes_alone() -> None:
    buffer = make_buffer()
    before = buffer.views(4, 4)
    buffer.write(AttentionBatch(0, [1] * 4, [30, 1, 2, 3], [list(range(1, 9)), [9], [10], [11]]), PAGE_SIZE)
    after = buffer.views(4, 4)
    for name in ("cache_slots", "indptr", "last_page_len", "slice_tokens", "page_ids"):
        assert getattr(before, name).data_ptr() == getattr(after, name).data_ptr()
        assert getattr(after, name).data_ptr() % 16 == after.cache_slots.data_ptr() % 16
    assert before.indptr.tolist() == [0, 8, 9, 10, 11]


def test_the_largest_step_fits() -> None:
    buffer = make_buffer()
    pages = [list(range(1, 9))] * 5
    buffer.write(AttentionBatch(5, [4, 4, 4, 2, 2], [32] * 5, pages), PAGE_SIZE)
    assert buffer.views(16, 5).page_ids[:40].tolist() == list(range(1, 9)) * 5


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "max_num_requests", "tiles", "tile"),
    [
        (64, 8, 8, 33, 128),  # two blocks per SM for a split prefill
        (64, 8, 600, 899, 16),  # a graph of 600 rows: 300 tiles of queries and 599 for ragged ends
        (32, 32, 1024, 1087, 16),
    ],
)
def test_scratch_holds_the_partial_results(
    num_heads: int, num_kv_heads: int, max_num_requests: int, tiles: int, tile: int
) -> None:
    got = float_workspace_bytes(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
        max_num_requests=max_num_requests,
        num_sms=132,
    )
    need = num_heads * tiles * tile * 129 * 4
    assert need <= got <= max(need * 1.01, 128 * 2**20)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "num_tokens", "num_requests", "tiles", "tile"),
    [
        (64, 8, 512, 65, 96, 128),  # 32 tiles of queries and 64 for ragged ends
        (64, 8, 256, 2, 33, 128),  # two blocks per SM are more
        (64, 8, 64, 64, 95, 16),  # one row for each request: group 8
        (32, 32, 64, 40, 40, 64),  # up to 25 rows for one request
    ],
)
def test_scratch_of_a_prefill_graph(
    num_heads: int, num_kv_heads: int, num_tokens: int, num_requests: int, tiles: int, tile: int
) -> None:
    got = prefill_graph_bytes(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
        num_tokens=num_tokens,
        num_requests=num_requests,
        num_sms=132,
    )
    need = num_heads * tiles * tile * 129 * 4
    assert need <= got <= need * 1.01
