import pytest
import torch

from tensorrt_lora.kernels.paged_attention import (
    chunk_mask,
    decode_attention,
    prefill_attention,
    write_kv_cache,
)

PAGE_SIZE = 4


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention in float64, one query and head at a time: the last rows of `k` are those of `q`."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    offset = k.shape[0] - q.shape[0]
    output = torch.empty_like(q)
    for row in range(q.shape[0]):
        visible = offset + row + 1
        for head in range(q.shape[1]):
            scores = k[:visible, head // group] @ q[row, head] / q.shape[2] ** 0.5
            output[row, head] = torch.softmax(scores, dim=0) @ v[:visible, head // group]
    return output


def paged(k: torch.Tensor, v: torch.Tensor, page_ids: list[int], pages: int) -> torch.Tensor:
    """A cache layer with `k` and `v` in `page_ids`; every other slot holds large values."""
    cache = torch.full((pages, 2, PAGE_SIZE, *k.shape[1:]), 100.0, dtype=k.dtype)
    for position in range(k.shape[0]):
        page, offset = page_ids[position // PAGE_SIZE], position % PAGE_SIZE
        cache[page, 0, offset], cache[page, 1, offset] = k[position], v[position]
    return cache


def test_write_puts_keys_and_values_into_their_slots_only() -> None:
    cache = torch.zeros(5, 2, PAGE_SIZE, 2, 3)
    fused = torch.randn(3, 18)
    k, v = fused[:, 6:12].view(3, 2, 3), fused[:, 12:].view(3, 2, 3)
    slots = [(3, 1), (1, 0), (4, 3)]
    write_kv_cache(k, v, cache, torch.tensor([page * PAGE_SIZE + offset for page, offset in slots]))
    expected = torch.zeros_like(cache)
    for row, (page, offset) in enumerate(slots):
        expected[page, 0, offset], expected[page, 1, offset] = k[row], v[row]
    assert torch.equal(cache, expected)


def test_padding_rows_share_a_slot_of_page_zero() -> None:
    cache = torch.zeros(3, 2, PAGE_SIZE, 1, 2)
    k = v = torch.ones(3, 1, 2)
    write_kv_cache(k, v, cache, torch.tensor([0, 2 * PAGE_SIZE, 0]))
    assert cache[0, :, 0].eq(1).all() and cache[2, :, 0].eq(1).all() and cache.sum() == 8


@pytest.mark.parametrize(("chunk", "kv_len"), [(1, 1), (7, 7), (3, 11), (1, 9), (4, 8)])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 8), (6, 2, 16), (4, 4, 5)])
def test_prefill_is_causal_from_the_chunk_on(chunk: int, kv_len: int, heads: int, kv_heads: int, head_dim: int) -> None:
    k, v = torch.randn(2, kv_len, kv_heads, head_dim)
    q = torch.randn(chunk, heads, head_dim)
    page_ids = [5, 2, 7][: -(-kv_len // PAGE_SIZE)]
    mask = None if chunk == kv_len else chunk_mask(chunk, kv_len, q.dtype, q.device)
    actual = prefill_attention(q, paged(k, v, page_ids, 8), torch.tensor(page_ids), kv_len, mask)
    torch.testing.assert_close(actual.double(), attend(q, k, v), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 8), (6, 2, 16), (4, 4, 5)])
def test_decode_ignores_the_padding_of_short_rows(heads: int, kv_heads: int, head_dim: int) -> None:
    kv_lens, tables = [9, 1, 4], [[1, 2, 3, 0], [4, 0, 0, 0], [6, 0, 0, 0]]
    keys_values = [torch.randn(2, kv_len, kv_heads, head_dim) for kv_len in kv_lens]
    cache = torch.full((8, 2, PAGE_SIZE, kv_heads, head_dim), 100.0)
    for (k, v), table, kv_len in zip(keys_values, tables, kv_lens, strict=True):
        used = table[: -(-kv_len // PAGE_SIZE)]
        cache[used] = paged(k, v, used, 8)[used]
    q = torch.randn(3, heads, head_dim)
    beyond = torch.arange(4 * PAGE_SIZE) >= torch.tensor(kv_lens)[:, None]
    mask = torch.zeros(beyond.shape).masked_fill(beyond, -torch.inf)[:, None, None]
    actual = decode_attention(q, cache, torch.tensor(tables), mask)
    expected = torch.cat([attend(q[row : row + 1], k, v) for row, (k, v) in enumerate(keys_values)])
    torch.testing.assert_close(actual.double(), expected, rtol=2e-6, atol=2e-6)


def test_attention_in_bfloat16() -> None:
    k, v = torch.randn(2, 10, 2, 16).bfloat16()
    q = torch.randn(3, 4, 16).bfloat16()
    cache = paged(k, v, [3, 1, 2], 4)
    actual = prefill_attention(q, cache, torch.tensor([3, 1, 2]), 10, chunk_mask(3, 10, q.dtype, q.device))
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.double(), attend(q, k, v), rtol=2e-2, atol=2e-2)


def test_chunk_mask_shows_each_row_one_token_more() -> None:
    visible = chunk_mask(3, 5, torch.float32, torch.device("cpu")).eq(0)
    assert visible.tolist() == [[True] * 3 + [False] * 2, [True] * 4 + [False], [True] * 5]
