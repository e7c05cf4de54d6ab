"""The projections' kernels compile for sm_90 in every configuration, fit, and spill nothing."""

import re
from dataclasses import replace
from itertools import product

import pytest
import torch
import triton

from tensorrt_lora.bench.linear_case import projection_shapes
from tensorrt_lora.config.model_presets import preset_names
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, DECODE_TILE_SIZE, GAIN_ROW, RANK_PAGE
from tensorrt_lora.kernels.lora_linear_kernel import _lora_linear_kernel
from tensorrt_lora.kernels.lora_shrink import num_splits, shrink_config
from tensorrt_lora.kernels.scale_product import BLOCK_N, BLOCK_T, NUM_WARPS, _scale_product_kernel
from tensorrt_lora.kernels.streamed_linear import BLOCK_SCALES, NO_SCALES, ROW_SCALES, _streamed_linear_kernel
from tensorrt_lora.kernels.streamed_linear_config import StreamedLinearConfig, streamed_linear_config
from tests.support.sm90 import SHARED_MEMORY_LIMIT, Resources, assembly_sm90, compile_sm90

CUDA = torch.device("cuda")
INDICES = dict.fromkeys(
    ("page_table", "rank", "extras", "token_slots", "sorted_tokens", "tile_slot", "tile_start", "tile_len"), "i32"
)
ACCESS = re.compile(r"(ld|st|atom|red)\.global|cp\.async\.c[ag]\.shared")
SHAPES = [(10240, 5120), (5120, 8192), (5120, 25600)]


def pointers(scales: int) -> dict[str, str]:
    element = "bf16" if scales == NO_SCALES else "fp8e4nv"
    return {
        **dict.fromkeys(("base_x", "weight"), element),
        **dict.fromkeys(("x_scale", "weight_scale", "partials", "h_slices", "lora_scale"), "fp32"),
        **dict.fromkeys(("bias", "out", "a_pool", "b_pool", "h"), "bf16"),
        **dict.fromkeys(("counters", "lora_counters"), "i32"),
        **INDICES,
    }


def base_constants(config: StreamedLinearConfig, scales: int, in_features: int, **changes: object) -> dict[str, object]:
    return {
        "SCALES": scales,
        "HAS_BIAS": False,
        "SPLITS": -(-in_features // config.split_width(in_features)),
        "EVEN_K": True,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "PROGRAMMATIC": True,
        **changes,
    }


def lora_constants(tokens: int, in_features: int, modules: int, max_rank: int) -> dict[str, object]:
    shrink = shrink_config(DECODE_TILE_SIZE, torch.bfloat16, modules * max_rank)
    return {
        "MODULES": modules,
        "MAX_RANK": max_rank,
        "PAGE": RANK_PAGE,
        "BIAS": BIAS_ROW,
        "GAIN": GAIN_ROW,
        "LORA_SPLITS": num_splits(tokens, in_features, CUDA),
        "RANK_BLOCKS": -(-modules * max_rank // shrink.block_r),
        "LORA_EVEN_K": True,
        "SHRINK_M": shrink.block_m,
        "SHRINK_R": shrink.block_r,
        "SHRINK_K": shrink.block_k,
        "EXPAND": True,
        "EXPAND_R": min(triton.next_power_of_2(max_rank), 64),
    }


def assert_fits(resources: Resources) -> None:
    assert resources.shared_bytes <= SHARED_MEMORY_LIMIT
    assert resources.stack_bytes == 0


def config_of(tokens: int, shape: tuple[int, int], scales: int) -> StreamedLinearConfig:
    itemsize = 2 if scales == NO_SCALES else 1
    return streamed_linear_config(tokens, *shape, itemsize=itemsize, block_scales=scales == BLOCK_SCALES)


def shipped_launches() -> list[tuple[StreamedLinearConfig, int, int]]:
    """(config, splits, scales) of all presets' projections. Of launches that differ in splits alone, those of most."""
    found: dict[tuple[object, ...], tuple[StreamedLinearConfig, int, int]] = {}
    for preset in preset_names():
        stored = (ROW_SCALES, BLOCK_SCALES) if "fp8" in preset else (NO_SCALES,)
        for shape, tokens, scales in product(projection_shapes(preset), (1, 32, 64), stored):
            config = config_of(tokens, (shape.out_features, shape.in_features), scales)
            splits = -(-shape.in_features // config.split_width(shape.in_features))
            key = (replace(config, splits=0), splits > 1, scales)
            found[key] = max(found.get(key, (config, splits, scales)), (config, splits, scales), key=lambda one: one[1])
    return list(found.values())


@pytest.mark.parametrize(("config", "splits", "scales"), shipped_launches())
def test_every_shipped_launch(config: StreamedLinearConfig, splits: int, scales: int) -> None:
    types = pointers(scales)
    types["x"] = types["base_x"]
    constants = base_constants(config, scales, 8192, SPLITS=splits)
    assert_fits(compile_sm90(_streamed_linear_kernel, types, constants, config.num_warps, config.num_stages))
    types["x"] = "bf16"
    constants |= lora_constants(config.block_m, 8192, modules=2, max_rank=64)
    constants["EXPAND"] = config.block_m * config.block_n <= 64 * 64  # as `can_fuse` asks
    assert_fits(compile_sm90(_lora_linear_kernel, types, constants, config.num_warps, config.num_stages))


@pytest.mark.parametrize("scales", [NO_SCALES, ROW_SCALES, BLOCK_SCALES])
@pytest.mark.parametrize("tokens", [1, 64, 512])
def test_odd_widths_and_biases(tokens: int, scales: int) -> None:
    if tokens > 64 and scales != BLOCK_SCALES:
        pytest.skip("left to cuBLAS")
    config = config_of(tokens, SHAPES[1], scales)
    types = pointers(scales)
    types["x"] = types["base_x"]
    constants = base_constants(config, scales, SHAPES[1][1], EVEN_K=False, HAS_BIAS=True)
    assert_fits(compile_sm90(_streamed_linear_kernel, types, constants, config.num_warps, config.num_stages))


@pytest.mark.parametrize("expand", [True, False])
@pytest.mark.parametrize(("tokens", "modules", "max_rank"), [(1, 3, 32), (8, 1, 16), (32, 3, 256)])
def test_ranks_and_modules(tokens: int, modules: int, max_rank: int, expand: bool) -> None:
    config = config_of(tokens, SHAPES[0], ROW_SCALES)
    constants = base_constants(config, ROW_SCALES, SHAPES[0][1])
    constants |= lora_constants(tokens, SHAPES[0][1], modules, max_rank) | {"EXPAND": expand}
    types = pointers(ROW_SCALES) | {"x": "bf16"}
    assert_fits(compile_sm90(_lora_linear_kernel, types, constants, config.num_warps, config.num_stages))


def test_scale_product() -> None:
    types = {"out": "bf16", "bias": "bf16", "x_scale": "fp32", "weight_scale": "fp32"}
    constants: dict[str, object] = {"HAS_BIAS": True, "BLOCK_T": BLOCK_T, "BLOCK_N": BLOCK_N}
    assert_fits(compile_sm90(_scale_product_kernel, types, constants, NUM_WARPS, num_stages=3))


@pytest.mark.parametrize("scales", [NO_SCALES, ROW_SCALES, BLOCK_SCALES])
def test_nothing_that_a_kernel_writes_is_touched_before_the_wait(scales: int) -> None:
    shape = SHAPES[2]
    config = config_of(1, shape, scales)
    constants = base_constants(config, scales, shape[1])
    types = pointers(scales)
    types["x"] = types["base_x"]
    code = assembly_sm90(_streamed_linear_kernel, types, constants, config.num_warps)
    before, wait, after = code.partition("griddepcontrol.wait")
    assert wait and not ACCESS.search(before) and ACCESS.search(after)
    assert "griddepcontrol.launch_dependents" in before
    assert "wgmma.mma_async" in after

    types["x"] = "bf16"
    code = assembly_sm90(_lora_linear_kernel, types, constants | lora_constants(1, shape[1], 1, 32), config.num_warps)
    assert code.count("griddepcontrol.wait") == 2, "the shrink's programs and the base's"
    assert not ACCESS.search(code.partition("griddepcontrol.wait")[0])
