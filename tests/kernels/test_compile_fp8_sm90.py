"""The FP8 kernels compile for sm_90, fit, spill nothing, and wait for the kernel before them ahead of any access."""

import re

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tensorrt_lora.kernels.fp8_linear import _fp8_linear_kernel
from tensorrt_lora.kernels.fp8_linear_config import Fp8LinearConfig, fp8_linear_config
from tensorrt_lora.kernels.fp8_quantize import _quantize_kernel, quantize_config
from tests.support.sm90 import SHARED_MEMORY_LIMIT, compile_sm90

LINEAR_POINTERS = {
    **dict.fromkeys(("x", "weight"), "fp8e4nv"),
    **dict.fromkeys(("x_scale", "weight_scale", "partials"), "fp32"),
    **dict.fromkeys(("bias", "out"), "bf16"),
    "counters": "i32",
}
QUANTIZE_POINTERS = {"x": "bf16", "values": "fp8e4nv", "scale": "fp32", "static_scale": "fp32"}


def linear_constants(config: Fp8LinearConfig, *, block_scales: bool, even_k: bool = True) -> dict[str, object]:
    return {
        "BLOCK_SCALES": block_scales,
        "HAS_BIAS": False,
        "SPLIT": config.splits > 1,
        "EVEN_K": even_k,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "PREFETCH": config.block_k * config.num_stages,
        "PROGRAMMATIC": True,
    }


@pytest.mark.parametrize("block_scales", [False, True])
@pytest.mark.parametrize("tokens", [1, 32, 64, 512])
@pytest.mark.parametrize(("out_features", "in_features"), [(51200, 5120), (5120, 25600)])
def test_linear(out_features: int, in_features: int, tokens: int, block_scales: bool) -> None:
    config = fp8_linear_config(tokens, out_features, in_features, block_scales=block_scales)
    for even_k in (True, False):
        constants = linear_constants(config, block_scales=block_scales, even_k=even_k)
        resources = compile_sm90(_fp8_linear_kernel, LINEAR_POINTERS, constants, config.num_warps, config.num_stages)
        assert resources.shared_bytes <= SHARED_MEMORY_LIMIT
        assert resources.stack_bytes == 0


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("group_size", [128, 1024, 5120, 8192, 12288, 25600, 32768])
def test_quantize(group_size: int, static: bool) -> None:
    config = quantize_config(group_size)
    constants = quantize_constants(group_size, static=static)
    resources = compile_sm90(_quantize_kernel, QUANTIZE_POINTERS, constants, config.num_warps, num_stages=3)
    assert resources.stack_bytes == 0


def quantize_constants(group_size: int, *, static: bool) -> dict[str, object]:
    config = quantize_config(group_size)
    return {
        "GROUP_SIZE": group_size,
        "STATIC": static,
        "BLOCK_ROWS": config.block_rows,
        "BLOCK_COLUMNS": config.block_columns,
        "PROGRAMMATIC": True,
    }


def ptx(kernel: triton.JITFunction, pointers: dict[str, str], constants: dict[str, object]) -> str:
    types = {name: f"*{element}" for name, element in pointers.items()}
    types |= {param.name: "constexpr" for param in kernel.params if param.is_constexpr}
    signature = {param.name: types.get(param.name, "i32") for param in kernel.params}
    attributes = {(i,): [["tt.divisibility", 16]] for i, param in enumerate(kernel.params) if not param.is_constexpr}
    source = ASTSource(kernel, signature, constants, attributes)
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_stages": 4}).asm["ptx"])


ACCESS = re.compile(r"(ld|st|atom|red)\.global|cp\.async\.c[ag]\.shared")


@pytest.mark.parametrize("block_scales", [False, True])
def test_linear_waits_before_it_touches_what_others_write(block_scales: bool) -> None:
    """What comes before the wait is the request for weights, which is no access to a register or to shared memory."""
    config = fp8_linear_config(1, 5120, 8192, block_scales=block_scales)
    assert config.splits > 1
    code = ptx(_fp8_linear_kernel, LINEAR_POINTERS, linear_constants(config, block_scales=block_scales))
    before, wait, after = code.partition("griddepcontrol.wait")
    assert wait and not ACCESS.search(before) and ACCESS.search(after)
    assert "cp.async.bulk.prefetch.L2.global" in before and "griddepcontrol.launch_dependents" in before
    assert "wgmma.mma_async" in after


def test_quantize_waits_before_it_reads() -> None:
    code = ptx(_quantize_kernel, QUANTIZE_POINTERS, quantize_constants(5120, static=True))
    before, wait, after = code.partition("griddepcontrol.wait")
    assert wait and not ACCESS.search(before) and ACCESS.search(after)
    assert "cvt.rn.satfinite.e4m3x2" in after
