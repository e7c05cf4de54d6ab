"""PeftCacheConfig: bounds."""

import pytest

from tensorrt_lora.config.peft_cache_config import PeftCacheConfig


def test_host_cache_is_one_gibibyte() -> None:
    assert PeftCacheConfig().host_cache_size == 1073741824


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host_cache_size": 0}, "host_cache_size\n  Input should be greater than or equal to 1"),
        ({"host_cache_size": 1e9}, "host_cache_size\n  Input should be a valid integer"),
        ({"device_cache_percent": 0.0}, "device_cache_percent\n  Input should be greater than 0"),
        ({"device_cache_percent": 2}, "device_cache_percent\n  Input should be less than 1"),
    ],
)
def test_refuses(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        PeftCacheConfig(**settings)
    assert message in str(error.value)
