"""One layer's attention as a model runs it, but for head norms and rotation: of finished queries and keys."""

from functools import cache

import torch
from torch import Tensor

from tensorrt_lora.attention_backend.interface import AttentionBackend, AttentionMetadata
from tensorrt_lora.kernels.decode_attention import HeadNormRope
from tensorrt_lora.kernels.paged_attention import write_kv_cache


def write_and_attend(backend: AttentionBackend, qkv: tuple[Tensor, ...], metadata: AttentionMetadata) -> Tensor:
    """Attention of finished q, k and v [T, heads * D], whose keys and values go to `metadata.cache_slots`."""
    q, k, v = qkv
    if metadata.fuses_decode:
        return backend.decode(q, k, v, unturned(metadata.num_tokens, backend.head_dim, q.device), metadata)
    key, value = (x.unflatten(-1, (-1, backend.head_dim)) for x in (k, v))
    slots = metadata.cache_slots[: metadata.num_tokens]
    write_kv_cache(key, value, metadata.kv_cache[backend.layer_idx], slots)
    return backend.forward(q, metadata)


@cache
def unturned(num_tokens: int, head_dim: int, device: torch.device) -> HeadNormRope:
    """Leaves heads as they are, bit for bit: no norm, and an angle of 0.

    Kept, because kernels may read it before what is in front of them has ended.
    """
    table = torch.cat((torch.ones(1, head_dim // 2), torch.zeros(1, head_dim // 2)), dim=-1)
    positions = torch.zeros(num_tokens, dtype=torch.int64)
    return HeadNormRope(positions.to(device), table.to(device), q_weight=None, k_weight=None, eps=0.0)
