"""How many pages the KV cache gets."""

import torch

from tensorrt_lora.config.kv_cache_config import KvCacheConfig
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.utils.device import free_memory
from tensorrt_lora.utils.logger import logger

_RESERVED_PAGES = 1  # page 0 takes what padding rows write
_MAX_HOST_CACHE_BYTES = 2 * 2**30  # on the CPU: host memory is shared with everything else


def page_bytes(model: ModelConfig, config: KvCacheConfig, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers: keys and values of `tokens_per_block` tokens."""
    return model.num_layers * 2 * config.tokens_per_block * model.num_kv_heads * model.head_dim * dtype.itemsize


def num_kv_pages(
    model: ModelConfig,
    config: KvCacheConfig,
    *,
    max_batch_size: int,
    max_seq_len: int,
    max_num_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Pages to allocate, the reserved one included; call after weights and adapter slots are in.

    At most what `max_batch_size` sequences of `max_seq_len` tokens need; at most `free_gpu_memory_fraction` of what is
    free, less the activations of the largest step. Graphs and workspaces live in the remaining fraction.

    Raises:
        ValueError: not even one sequence of `max_seq_len` tokens fits.
    """
    per_sequence = -(-max_seq_len // config.tokens_per_block)
    wanted = max_batch_size * per_sequence
    if config.max_tokens is not None:
        wanted = min(wanted, -(-config.max_tokens // config.tokens_per_block))
    available = int(free_memory(device) * config.free_gpu_memory_fraction)
    available -= _activation_bytes(model, max_batch_size, max_num_tokens, dtype)
    if device.type != "cuda":
        available = min(available, _MAX_HOST_CACHE_BYTES)
    bytes_per_page = page_bytes(model, config, dtype)
    pages = min(wanted, available // bytes_per_page)
    if pages < per_sequence:
        raise ValueError(
            f"the KV cache gets {max(pages, 0)} pages of {config.tokens_per_block} tokens, but one sequence of "
            f"max_seq_len={max_seq_len} needs {per_sequence} ({per_sequence * bytes_per_page / 2**20:.0f} MiB); lower "
            f"max_seq_len or max_num_tokens, or raise kv_cache_config.max_tokens or free_gpu_memory_fraction"
        )
    logger.info(
        "KV cache: %d pages of %d tokens (%.1f MiB)",
        pages,
        config.tokens_per_block,
        pages * bytes_per_page / 2**20,
    )
    return pages + _RESERVED_PAGES


def _activation_bytes(model: ModelConfig, max_batch_size: int, max_num_tokens: int, dtype: torch.dtype) -> int:
    """An upper estimate: the widest layer's input, outputs and one temporary, and the logits with their fp32 copies."""
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    widest = 4 * model.hidden_size + 2 * max(3 * model.intermediate_size, 2 * qkv)
    logits = 4 * max_batch_size * model.vocab_size * torch.float32.itemsize
    return max_num_tokens * widest * dtype.itemsize + logits
