"""LoRA inside SiLU-and-mul of few tokens compiles for sm_90: nothing spilt, only B loaded before the wait."""

import pytest

from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW, RANK_PAGE
from tensorrt_lora.kernels.lora_silu_and_mul_decode import BLOCK_N, block_ranks, block_tokens, num_warps
from tensorrt_lora.kernels.lora_silu_and_mul_decode_kernel import _lora_silu_and_mul_kernel
from tests.support.sm90 import SHARED_MEMORY_LIMIT, assembly_sm90, compile_sm90, read_before_wait

INDICES = ("page_table", "rank", "extras", "token_slots", "sorted_tokens", "tile_slot", "tile_start", "tile_len")


def pointers(quantize: str, element: str) -> dict[str, str]:
    rows = ("gate_up", "h", "b_pool", "out", "values", "scale", "static_scale")
    quantized = {"values": "fp8e4nv", "scale": "fp32", "static_scale": "fp32"} if quantize else {}
    return {**dict.fromkeys(rows, element), **dict.fromkeys(INDICES, "i32"), **quantized}


def constants(width: int, tokens: int, max_rank: int, quantize: str) -> dict[str, object]:
    return {
        "WIDTH": width,
        "MAX_RANK": max_rank,
        "PAGE": RANK_PAGE,
        "BIAS": BIAS_ROW,
        "GAIN": GAIN_ROW,
        "QUANTIZE": quantize,
        "BLOCK_M": block_tokens(tokens),
        "BLOCK_N": BLOCK_N,
        "BLOCK_R": block_ranks(max_rank),
        "PROGRAMMATIC": True,
    }


@pytest.mark.parametrize("quantize", ["", "token", "group", "static"])
@pytest.mark.parametrize("max_rank", [16, 32, 64, 112, 256])
@pytest.mark.parametrize("tokens", [1, 2, 8, 64])
def test_fits(tokens: int, max_rank: int, quantize: str) -> None:
    warps = num_warps(block_tokens(tokens))
    for width in (25600, 1000):
        values = constants(width, tokens, max_rank, quantize)
        resources = compile_sm90(_lora_silu_and_mul_kernel, pointers(quantize, "bf16"), values, warps, num_stages=1)
        assert resources.stack_bytes == 0
        assert resources.shared_bytes <= SHARED_MEMORY_LIMIT // 4, "several programs fit beside a projection's"


@pytest.mark.parametrize("element", ["fp32", "fp16"])
@pytest.mark.parametrize(("tokens", "max_rank"), [(1, 32), (64, 16), (64, 256)])
def test_other_dtypes(tokens: int, max_rank: int, element: str) -> None:
    warps = num_warps(block_tokens(tokens))
    values = constants(12288, tokens, max_rank, "")
    resources = compile_sm90(_lora_silu_and_mul_kernel, pointers("", element), values, warps, num_stages=1)
    assert resources.shared_bytes <= SHARED_MEMORY_LIMIT


@pytest.mark.parametrize("quantize", ["", "token", "group", "static"])
@pytest.mark.parametrize("tokens", [1, 64])
def test_what_comes_before_the_wait(tokens: int, quantize: str) -> None:
    types = pointers(quantize, "bf16")
    warps = num_warps(block_tokens(tokens))
    values = constants(25600, tokens, 32, quantize)
    ptx = assembly_sm90(_lora_silu_and_mul_kernel, types, values, warps)
    static = {"static_scale"} if quantize == "static" else set()
    assert read_before_wait(_lora_silu_and_mul_kernel, types, ptx) == {*INDICES, "b_pool"} | static
    assert "mma.sync.aligned.m16n8k16" in ptx, "sums have the order of lora_expand's"


@pytest.mark.parametrize("tokens", [1, 2, 64])
def test_no_value_is_computed_twice(tokens: int) -> None:
    """Where tensor cores leave a product, threads would share its values."""
    warps = num_warps(block_tokens(tokens))
    values = constants(25600, tokens, 32, "token")
    ptx = assembly_sm90(_lora_silu_and_mul_kernel, pointers("token", "bf16"), values, warps)
    assert ptx.count("ex2.approx") == block_tokens(tokens) * BLOCK_N // (32 * warps)
