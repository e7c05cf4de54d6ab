"""The LoRA kernels compile for sm_90 without a GPU in every shipped configuration, fit, and spill nothing."""

import pytest
import torch

from tensorrt_lora.kernels.lora_add import BLOCK_N, NUM_WARPS, _lora_add_kernel
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW, RANK_PAGE, choose_tile_size
from tensorrt_lora.kernels.lora_embedding_shrink import _lora_embedding_shrink_kernel
from tensorrt_lora.kernels.lora_expand import EXPAND_CONFIGS, ExpandConfig, _lora_expand_kernel, expand_config
from tensorrt_lora.kernels.lora_shrink import (
    SHRINK_CONFIGS,
    ShrinkConfig,
    _lora_shrink_kernel,
    num_splits,
    shrink_config,
)
from tests.support.sm90 import SHARED_MEMORY_LIMIT, Resources, compile_sm90

INDICES = dict.fromkeys(
    ("page_table", "rank", "extras", "token_slots", "sorted_tokens", "tile_slot", "tile_start", "tile_len"), "i32"
)
ELEMENT = {True: "bf16", False: "fp32"}
MOST_SPLITS = {16: 16, 64: 8}  # by tile size
# (splits, max_rank or None for the configuration's own, accumulate)
EXPAND_VARIANTS = [(1, None, False), (16, None, True), (1, 256, True)]


def assert_fits(resources: Resources) -> None:
    assert resources.shared_bytes <= SHARED_MEMORY_LIMIT
    assert resources.stack_bytes == 0


@pytest.mark.parametrize("even_k", [True, False])
@pytest.mark.parametrize(
    ("half", "config"),
    [(half, config) for (_, half), configs in SHRINK_CONFIGS.items() for config in configs],
)
def test_shrink(half: bool, config: ShrinkConfig, even_k: bool) -> None:
    constants = {
        "MODULES": 3,
        "MAX_RANK": 64,
        "PAGE": RANK_PAGE,
        "BLOCK_M": config.block_m,
        "BLOCK_R": config.block_r,
        "BLOCK_K": config.block_k,
        "EVEN_K": even_k,
        "PROGRAMMATIC": True,
    }
    pointers = {**INDICES, "x": ELEMENT[half], "a_pool": ELEMENT[half], "out": "fp32"}
    assert_fits(compile_sm90(_lora_shrink_kernel, pointers, constants, config.num_warps, config.num_stages))


@pytest.mark.parametrize(("splits", "max_rank", "accumulate"), EXPAND_VARIANTS)
@pytest.mark.parametrize(
    ("half", "config"),
    [(half, config) for (_, half), configs in EXPAND_CONFIGS.items() for config in configs],
)
def test_expand(half: bool, config: ExpandConfig, splits: int, max_rank: int | None, accumulate: bool) -> None:
    constants = {
        "MODULES": 3,
        "MAX_RANK": max_rank or config.block_r,
        "PAGE": RANK_PAGE,
        "BIAS": BIAS_ROW,
        "GAIN": GAIN_ROW,
        "SPLITS": min(splits, MOST_SPLITS[config.block_m]),
        "ACCUMULATE": accumulate,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_R": config.block_r,
        "BLOCKS": config.blocks,
        "PROGRAMMATIC": True,
    }
    pointers = {**INDICES, "scale": "fp32", "h": "fp32", "b_pool": ELEMENT[half], "out": ELEMENT[half]}
    assert_fits(compile_sm90(_lora_expand_kernel, pointers, constants, config.num_warps, num_stages=1))


@pytest.mark.parametrize("half", [True, False])
def test_add(half: bool) -> None:
    constants: dict[str, object] = {
        "PAGE": RANK_PAGE,
        "BIAS": BIAS_ROW,
        "GAIN": GAIN_ROW,
        "BLOCK_N": BLOCK_N,
        "PROGRAMMATIC": True,
    }
    pointers = {**INDICES, **dict.fromkeys(("delta", "b_pool", "out"), ELEMENT[half])}
    assert_fits(compile_sm90(_lora_add_kernel, pointers, constants, NUM_WARPS, num_stages=1))


@pytest.mark.parametrize("max_rank", [16, 64, 256])
@pytest.mark.parametrize("half", [True, False])
def test_embedding_shrink(half: bool, max_rank: int) -> None:
    constants: dict[str, object] = {"MAX_RANK": max_rank, "PAGE": RANK_PAGE, "BLOCK_R": max_rank}
    pointers = {**INDICES, "input_ids": "i64", "a_pool": ELEMENT[half], "out": "fp32"}
    assert_fits(compile_sm90(_lora_embedding_shrink_kernel, pointers, constants, num_warps=1, num_stages=1))


@pytest.mark.parametrize("num_tokens", [1, 2, 16, 17, 32, 33, 64, 128, 129, 192, 256, 257, 1024, 8192])
def test_no_launch_has_more_slices_than_are_compiled_here(num_tokens: int) -> None:
    splits = num_splits(num_tokens, 65536, torch.device("cuda"))
    assert splits <= MOST_SPLITS[choose_tile_size(num_tokens)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tile_size", [16, 64])
def test_a_configuration_covers_the_rank_where_one_can(tile_size: int, dtype: torch.dtype) -> None:
    for rows in range(16, 800, 16):
        largest = SHRINK_CONFIGS[tile_size, dtype is torch.bfloat16][-1].block_r
        assert shrink_config(tile_size, dtype, rows).block_r >= min(rows, largest)
        largest = EXPAND_CONFIGS[tile_size, dtype is torch.bfloat16][-1].block_r
        assert expand_config(tile_size, dtype, rows).block_r >= min(rows, largest)
