"""KvCacheConfig: page sizes and limits that are refused."""

import pytest

from tensorrt_lora.config.kv_cache_config import KvCacheConfig


def test_smallest_cache_is_one_page() -> None:
    assert KvCacheConfig(tokens_per_block=4, max_tokens=4).max_tokens == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens_per_block": 0}, "tokens_per_block\n  Input should be greater than or equal to 1"),
        ({"tokens_per_block": 24}, "tokens_per_block=24 is not a power of two: use 16, 32 or 64"),
        ({"max_tokens": 15}, "max_tokens=15 of the KV cache does not fill one page of tokens_per_block=16"),
        ({"free_gpu_memory_fraction": 0.0}, "free_gpu_memory_fraction\n  Input should be greater than 0"),
        ({"free_gpu_memory_fraction": 1.0}, "free_gpu_memory_fraction\n  Input should be less than 1"),
        ({"block_size": 16}, "block_size\n  Extra inputs are not permitted"),
    ],
)
def test_refuses(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        KvCacheConfig(**settings)
    assert message in str(error.value)
