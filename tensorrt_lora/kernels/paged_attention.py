"""Attention over a paged KV cache, and the write into it.

Called by the VANILLA attention backend. Shapes: T tokens, B requests, P pages of a request, H query heads, K
key/value heads, G = H / K, D head size, S = P * page_size. `kv_cache` is one layer: [pages, 2 (key, value),
page_size, K, D].
"""

import torch
from torch.nn import functional


def write_kv_cache(k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, cache_slots: torch.Tensor) -> None:
    """Store keys and values [T, K, D] at `cache_slots` [T] int64 (page * page_size + offset), in place.

    Slots of page 0 may repeat (padding rows); any other slot at most once.
    """
    _write_kv_cache_reference(k, v, kv_cache, cache_slots)


def prefill_attention(
    q: torch.Tensor, kv_cache: torch.Tensor, page_ids: torch.Tensor, kv_len: int, mask: torch.Tensor | None
) -> torch.Tensor:
    """One request's chunk against its cache.

    Args:
        q: [chunk, H, D]; the last row is the request's newest token.
        kv_cache: one layer, with this chunk's keys and values already written.
        page_ids: [ceil(kv_len / page_size)] int64.
        kv_len: tokens of the request in the cache.
        mask: `chunk_mask` in q's dtype, or None when the chunk is the whole sequence.

    Returns:
        [chunk, H, D].
    """
    return _prefill_attention_reference(q, kv_cache, page_ids, kv_len, mask)


def decode_attention(
    q: torch.Tensor, kv_cache: torch.Tensor, page_table: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """One new token of each of B requests against its cache.

    Args:
        q: [B, H, D].
        kv_cache: one layer, with the new tokens' keys and values already written.
        page_table: [B, P] int64; the tail of a shorter request may hold any valid page.
        mask: additive [B, 1, 1, S] in q's dtype: 0 for slots of the request, -inf beyond them.

    Returns:
        [B, H, D].
    """
    return _decode_attention_reference(q, kv_cache, page_table, mask)


def chunk_mask(chunk: int, kv_len: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Additive causal mask [chunk, kv_len] for the last `chunk` of `kv_len` tokens."""
    mask = torch.full((chunk, kv_len), -torch.inf, dtype=dtype, device=device)
    return mask.triu_(kv_len - chunk + 1)


def _write_kv_cache_reference(
    k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, cache_slots: torch.Tensor
) -> None:
    page_size = kv_cache.shape[2]
    rows = kv_cache.view(-1, *kv_cache.shape[3:])
    # A page is page_size key rows followed by page_size value rows.
    key_rows = cache_slots + cache_slots // page_size * page_size
    rows.index_copy_(0, key_rows, k)
    rows.index_copy_(0, key_rows + page_size, v)


def _prefill_attention_reference(
    q: torch.Tensor, kv_cache: torch.Tensor, page_ids: torch.Tensor, kv_len: int, mask: torch.Tensor | None
) -> torch.Tensor:
    chunk, num_heads, head_dim = q.shape
    num_kv_heads = kv_cache.shape[3]
    group = num_heads // num_kv_heads
    shape = (num_kv_heads, group, kv_len, head_dim)
    key, value = (
        kv_cache[:, part].index_select(0, page_ids).flatten(0, 1)[:kv_len].transpose(0, 1).unsqueeze(1).expand(shape)
        for part in (0, 1)
    )
    query = q.view(chunk, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    output = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    return output.permute(2, 0, 1, 3).reshape(chunk, num_heads, head_dim)


def _decode_attention_reference(
    q: torch.Tensor, kv_cache: torch.Tensor, page_table: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    requests, num_heads, head_dim = q.shape
    num_kv_heads = kv_cache.shape[3]
    # What lies beyond a request may be another's NaN, and neither a mask nor a weight of 0 takes that away.
    beyond = mask.view(requests, -1, 1, 1) < 0
    key, value = (
        kv_cache[:, part]
        .index_select(0, page_table.flatten())
        .view(requests, -1, num_kv_heads, head_dim)
        .masked_fill_(beyond, 0.0)
        .transpose(1, 2)
        for part in (0, 1)
    )
    # The G heads that share a key head stand in the place of query positions: no copy of keys for each head.
    query = q.reshape(requests, num_kv_heads, num_heads // num_kv_heads, head_dim)
    output = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return output.reshape(requests, num_heads, head_dim)
