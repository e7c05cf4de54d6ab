"""LoRA inside SiLU-and-mul of many tokens compiles for sm_90 in every configuration, fits, and spills nothing."""

import pytest
import torch

from tensorrt_lora.kernels.lora_batch import BIAS_ROW, DECODE_TILE_SIZE, GAIN_ROW, PREFILL_TILE_SIZE, RANK_PAGE
from tensorrt_lora.kernels.lora_silu_and_mul_prefill import BLOCK_N, COUNTED_TILES, PrefillConfig, prefill_config
from tensorrt_lora.kernels.lora_silu_and_mul_prefill_kernel import _lora_silu_and_mul_prefill_kernel
from tests.support.sm90 import SHARED_MEMORY_LIMIT, Resources, assembly_sm90, compile_sm90, read_before_wait

ROWS = ("gate_up", "b_pool", "out", "values", "scale", "static_scale")
INDICES = ("page_table", "rank", "extras", "sorted_tokens", "tile_slot", "tile_start", "tile_len")
GRANULARITIES = ["", "token", "group", "static"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def pointers(quantize: str, element: str) -> dict[str, str]:
    quantized = {"values": "fp8e4nv", "scale": "fp32", "static_scale": "fp32"} if quantize else {}
    others = {"h": "fp32", "lora_scale": "fp32", **dict.fromkeys(INDICES, "i32")}
    return {**dict.fromkeys(ROWS, element), **others, **quantized}


def constants(config: PrefillConfig, width: int, max_rank: int, splits: int, quantize: str) -> dict[str, object]:
    return {
        "WIDTH": width,
        "MAX_RANK": max_rank,
        "PAGE": RANK_PAGE,
        "BIAS": BIAS_ROW,
        "GAIN": GAIN_ROW,
        "SPLITS": splits,
        "QUANTIZE": quantize,
        "BLOCK_M": config.block_m,
        "BLOCK_N": BLOCK_N,
        "BLOCK_R": config.block_r,
        "COUNTED": COUNTED_TILES,
        "PROGRAMMATIC": True,
    }


def resources(
    config: PrefillConfig, width: int, max_rank: int, splits: int, quantize: str, element: str = "bf16"
) -> Resources:
    return compile_sm90(
        _lora_silu_and_mul_prefill_kernel,
        pointers(quantize, element),
        constants(config, width, max_rank, splits, quantize),
        config.num_warps,
        num_stages=1,
        max_registers=config.max_registers,
    )


@pytest.mark.parametrize("quantize", GRANULARITIES)
@pytest.mark.parametrize("max_rank", [16, 32, 64, 112, 256])
@pytest.mark.parametrize(
    ("tile_size", "splits"), [(PREFILL_TILE_SIZE, 1), (PREFILL_TILE_SIZE, 4), (DECODE_TILE_SIZE, 8)]
)
def test_fits(tile_size: int, splits: int, max_rank: int, quantize: str) -> None:
    widths = (25600, 1000) if splits == 1 else (12288,)
    for width in widths:
        config = prefill_config(tile_size, torch.bfloat16, max_rank, width, splits=splits, granularity=quantize)
        taken = resources(config, width, max_rank, splits, quantize)
        assert taken.stack_bytes == 0
        threads = 32 * config.num_warps
        most = min(65536 // (threads * taken.registers), SHARED_MEMORY_LIMIT // taken.shared_bytes)
        assert most >= (3 if config.max_registers else 2), "programs of an SM: loads in flight"


@pytest.mark.parametrize(("element", "quantize"), [("fp16", "group"), ("fp16", ""), ("fp32", "")])
@pytest.mark.parametrize(("tile_size", "max_rank"), [(PREFILL_TILE_SIZE, 32), (DECODE_TILE_SIZE, 256)])
def test_other_dtypes(tile_size: int, max_rank: int, element: str, quantize: str) -> None:
    config = prefill_config(tile_size, DTYPES[element], max_rank, 12288, splits=1, granularity=quantize)
    taken = resources(config, 12288, max_rank, 1, quantize, element)
    assert taken.stack_bytes == 0 and taken.shared_bytes <= SHARED_MEMORY_LIMIT


@pytest.mark.parametrize("quantize", GRANULARITIES)
def test_what_is_read_and_how(quantize: str) -> None:
    types = pointers(quantize, "bf16")
    config = prefill_config(PREFILL_TILE_SIZE, torch.bfloat16, 32, 25600, splits=1, granularity=quantize)
    values = constants(config, 25600, 32, 1, quantize)
    ptx = assembly_sm90(_lora_silu_and_mul_prefill_kernel, types, values, config.num_warps, num_stages=1)
    read = {"lora_scale", *INDICES} - {"page_table"}
    static = {"static_scale"} if quantize == "static" else set()
    assert read_before_wait(_lora_silu_and_mul_prefill_kernel, types, ptx) == read | static
    assert "wgmma.mma_async.sync.aligned.m64n64k16" in ptx, "sums have the order of lora_expand's"
    assert "st.global.v4.b32" in ptx and "ld.global.v4.b32" in ptx
    blocks = 2 if quantize == "group" else 1
    assert ptx.count("ex2.approx") == blocks * PREFILL_TILE_SIZE * BLOCK_N // 128, "no value is computed twice"
