"""Scratch memory of `fused_decode_attention`, shared by all layers and step sizes of an engine.

Owned by an attention backend. Launches follow one another on one stream, and each waits for those before it until it
writes, so they may share it; addresses never change, so graphs may keep them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tensorrt_lora.kernels.decode_attention_config import decode_attention_config


@dataclass(slots=True)
class DecodeAttentionWorkspace:
    """Flat; a launch uses the front."""

    sums: Tensor
    """float32: [B, K, splits, G, D], the sum of weighted values of each slice."""
    stats: Tensor
    """float32: [B, K, splits, 2, G], its largest score and the sum of its weights."""
    counters: Tensor
    """int32: [B, K], the slices that are there. Zero before and after every launch."""

    @classmethod
    def create(cls, kv_cache: Tensor, num_heads: int, max_requests: int) -> "DecodeAttentionWorkspace":
        """For launches of up to `max_requests` requests of H heads over `kv_cache` [..., pages, 2, page_size, K, D]."""
        num_pages, _, page_size, kv_heads, head_dim = kv_cache.shape[-5:]
        rows = num_heads * max(
            requests * decode_attention_config(requests, kv_heads, head_dim, num_pages * page_size).splits
            for requests in range(1, max_requests + 1)
        )
        device = kv_cache.device
        return cls(
            sums=torch.empty(rows * head_dim, dtype=torch.float32, device=device),
            stats=torch.empty(rows * 2, dtype=torch.float32, device=device),
            counters=torch.zeros(max_requests * kv_heads, dtype=torch.int32, device=device),
        )
