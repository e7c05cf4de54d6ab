import pytest

from tensorrt_lora.attention_backend import AttentionBatch, get_attention_backend
from tensorrt_lora.attention_backend.interface import compute_cache_slots
from tensorrt_lora.attention_backend.vanilla import VanillaAttention


def test_slots_follow_each_requests_pages() -> None:
    batch = AttentionBatch(
        num_contexts=2,
        query_lens=[3, 4, 1, 1],
        kv_lens=[3, 7, 9, 4],
        page_ids=[[5], [9, 2], [1, 3, 8, 6], [7]],
    )
    slots = compute_cache_slots(batch, page_size=4)
    assert slots.tolist() == [20, 21, 22, 39, 8, 9, 10, 32, 31]
    assert batch.num_requests == 4 and batch.num_tokens == 9


def test_slots_of_an_empty_batch() -> None:
    assert compute_cache_slots(AttentionBatch(0, [], [], []), page_size=4).tolist() == []


def test_backends_by_name() -> None:
    assert get_attention_backend("VANILLA") is VanillaAttention
    with pytest.raises(ValueError, match="attention backend 'TRITON' does not exist; choose 'VANILLA'"):
        get_attention_backend("TRITON")
