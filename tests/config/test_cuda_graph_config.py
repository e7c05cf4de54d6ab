"""CudaGraphConfig: which sizes are captured, and which lists are refused."""

import pytest

from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig


@pytest.mark.parametrize(
    ("engine_max", "sizes"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (20, [1, 2, 4, 8, 16, 20]),
        (32, [1, 2, 4, 8, 16, 24, 32]),
    ],
)
def test_default_sizes_end_at_the_engines_largest_batch(engine_max: int, sizes: list[int]) -> None:
    assert CudaGraphConfig().resolve_batch_sizes(engine_max) == sizes


def test_default_sizes_end_at_the_configs_own_largest_batch() -> None:
    assert CudaGraphConfig(max_batch_size=6).resolve_batch_sizes(64) == [1, 2, 4, 6]


def test_default_sizes_without_padding_leave_none_out() -> None:
    assert CudaGraphConfig(enable_padding=False).resolve_batch_sizes(5) == [1, 2, 3, 4, 5]


def test_explicit_sizes_are_taken_as_they_are() -> None:
    assert CudaGraphConfig(batch_sizes=[7, 1]).resolve_batch_sizes(64) == [1, 7]


@pytest.mark.parametrize(
    ("engine_max", "buckets"),
    [
        (8, [8]),
        (16, [16]),
        (100, [16, 32, 64, 100]),
        (1000, [16, 32, 64, 128, 192, 256, 384, 512, 768, 1000]),
        (8192, [16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048]),
    ],
)
def test_default_prefill_buckets_end_at_2048_tokens_or_the_largest_step(engine_max: int, buckets: list[int]) -> None:
    assert CudaGraphConfig().resolve_prefill_token_buckets(engine_max) == buckets


def test_prefill_buckets_are_explicit_or_none() -> None:
    assert CudaGraphConfig(prefill_token_buckets=[64, 8]).resolve_prefill_token_buckets(8192) == [8, 64]
    assert CudaGraphConfig(prefill_token_buckets=[]).resolve_prefill_token_buckets(8192) == []


def test_without_padding_no_prefill_is_captured_unless_asked_for() -> None:
    assert CudaGraphConfig(enable_padding=False).resolve_prefill_token_buckets(8192) == []
    exact = CudaGraphConfig(enable_padding=False, prefill_token_buckets=[7])
    assert exact.resolve_prefill_token_buckets(8192) == [7]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefill_token_buckets": [8, 16, 8]}, "prefill_token_buckets holds 8 more than once"),
        ({"prefill_token_buckets": [0]}, "prefill_token_buckets.0\n  Input should be greater than or equal to 1"),
        ({"prefill_token_buckets": [4097]}, "prefill_token_buckets.0\n  Input should be less than or equal to 4096"),
        ({"batch_sizes": []}, "batch_sizes is empty"),
        ({"batch_sizes": [1, 0]}, "batch_sizes holds 0: a batch has at least one request"),
        ({"batch_sizes": [4, 2, 4]}, "batch_sizes holds 4 more than once"),
        ({"batch_sizes": [1, 9], "max_batch_size": 8}, "batch_sizes holds 9, more than max_batch_size=8"),
        ({"batch_sizes": ["1"]}, "batch_sizes.0\n  Input should be a valid integer"),
        ({"max_batch_size": 0}, "max_batch_size\n  Input should be greater than or equal to 1"),
    ],
)
def test_refuses(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        CudaGraphConfig(**settings)
    assert message in str(error.value)
