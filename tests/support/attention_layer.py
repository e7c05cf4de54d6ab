"""One layer's attention as a model runs it: the cache written first, then read by the backend."""

from torch import Tensor

from tensorrt_lora.attention_backend.interface import AttentionBackend, AttentionMetadata
from tensorrt_lora.kernels.paged_attention import write_kv_cache


def write_and_attend(backend: AttentionBackend, qkv: tuple[Tensor, ...], metadata: AttentionMetadata) -> Tensor:
    """Attention of finished q, k and v [T, heads * D], whose keys and values go to `metadata.cache_slots`."""
    q, k, v = qkv
    key, value = (x.unflatten(-1, (-1, backend.head_dim)) for x in (k, v))
    slots = metadata.cache_slots[: metadata.num_tokens]
    write_kv_cache(key, value, metadata.kv_cache[backend.layer_idx], slots)
    return backend.forward(q, metadata)
