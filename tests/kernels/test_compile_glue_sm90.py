"""The kernels between projections compile for sm_90, spill nothing, and read only parameters before they wait."""

import re
from dataclasses import dataclass

import pytest
import triton

from tensorrt_lora.kernels.activation import _silu_and_mul_kernel
from tensorrt_lora.kernels.fp8_quantize import (
    PART_COLUMNS,
    PART_WARPS,
    _quantize_by_maxima_kernel,
    _quantize_kernel,
    quantize_shape,
)
from tensorrt_lora.kernels.lora_silu_and_mul_decode import BLOCK_N
from tensorrt_lora.kernels.qk_norm_rope import BLOCK_HEADS
from tensorrt_lora.kernels.qk_norm_rope import num_warps as rope_warps
from tensorrt_lora.kernels.qk_norm_rope_kernel import _qk_norm_rope_kernel
from tensorrt_lora.kernels.rms_norm import _rms_norm_kernel
from tensorrt_lora.kernels.row_shape import row_shape
from tests.support.sm90 import Resources, assembly_sm90, compile_sm90, read_before_wait

HIDDEN_SIZES = [64, 1024, 2560, 4096, 5120, 8192, 16384, 25600]
WIDEST_WITH_DELTA = 20480  # a row, its delta and the residual are in the registers of one program
INTERMEDIATE_SIZES = [64, 3072, 12288, 14336, 25600, 28672]
GRANULARITIES = ["", "token", "group", "static"]
DELTA_POINTERS = ("delta", "b_pool", "page_table", "rank", "extras", "token_slots")
READ_OF_ADAPTERS = {"rank", "extras", "token_slots"}  # before the wait


@dataclass(slots=True)
class Launch:
    """A kernel with the types and constants of one of its launches."""

    kernel: triton.JITFunction
    pointers: dict[str, str]
    constants: dict[str, object]
    num_warps: int

    def resources(self) -> Resources:
        return compile_sm90(self.kernel, self.pointers, self.constants, self.num_warps, num_stages=3)

    def assembly(self, stage: str) -> str:
        return assembly_sm90(self.kernel, self.pointers, self.constants, self.num_warps, stage)

    def read_before_wait(self) -> set[str]:
        return read_before_wait(self.kernel, self.pointers, self.assembly("ptx"))


def pointers(rows: tuple[str, ...], granularity: str, element: str = "bf16") -> dict[str, str]:
    """Rows of activations, and what a quantisation writes: stood in for by rows where there is none."""
    stand_in = {"values": "fp8e4nv", "scale": "fp32", "static_scale": "fp32"} if granularity else {}
    return dict.fromkeys((*rows, "values", "scale", "static_scale"), element) | stand_in


def delta_pointers(delta: bool, element: str) -> dict[str, str]:
    """What a delta is read from: stood in for likewise."""
    integers = dict.fromkeys(("page_table", "rank", "extras", "token_slots"), "i32") if delta else {}
    return dict.fromkeys(DELTA_POINTERS, element) | integers


def rms_norm(width: int, granularity: str, *, add: bool, delta: bool = False, element: str = "bf16") -> Launch:
    shape = row_shape(width)
    constants: dict[str, object] = {
        "WIDTH": width,
        "EPS": 1e-6,
        "ADD": add,
        "HAS_DELTA": delta,
        "QUANTIZE": granularity,
        "BLOCK": shape.block,
        "CHUNKS": shape.chunks,
        "PROGRAMMATIC": True,
    }
    rows = ("x", "residual", "weight", "out")
    types = pointers(rows, granularity, element) | delta_pointers(delta, element)
    return Launch(_rms_norm_kernel, types, constants, shape.num_warps)


def silu_and_mul(width: int, granularity: str, *, delta: bool = False, element: str = "bf16") -> Launch:
    constants: dict[str, object] = {
        "WIDTH": width,
        "HAS_DELTA": delta,
        "QUANTIZE": granularity,
        "BLOCK": PART_COLUMNS,
        "PROGRAMMATIC": True,
    }
    types = pointers(("gate_up", "out"), granularity, element) | delta_pointers(delta, element)
    return Launch(_silu_and_mul_kernel, types, constants, PART_WARPS)


def quantize_by_maxima(width: int, part_columns: int) -> Launch:
    parts = triton.cdiv(width, part_columns)
    constants: dict[str, object] = {
        "FEATURES": width,
        "PARTS": parts,
        "BLOCK": PART_COLUMNS,
        "BLOCK_PARTS": triton.next_power_of_2(parts),
        "PROGRAMMATIC": True,
    }
    types = {"x": "bf16", "maxima": "fp32", "values": "fp8e4nv", "scale": "fp32"}
    return Launch(_quantize_by_maxima_kernel, types, constants, PART_WARPS)


def quantize(width: int, granularity: str) -> Launch:
    shape = quantize_shape(width, granularity)
    constants: dict[str, object] = {
        "WIDTH": width,
        "QUANTIZE": granularity,
        "BLOCK": shape.block,
        "CHUNKS": shape.chunks,
        "PROGRAMMATIC": True,
    }
    return Launch(_quantize_kernel, pointers(("x",), granularity), constants, shape.num_warps)


def qk_norm_rope(head_dim: int, element: str, *, norm: bool, write_kv: bool, delta: bool) -> Launch:
    constants: dict[str, object] = {
        "HEADS": 32,
        "KV_HEADS": 8,
        "HEAD_DIM": head_dim,
        "PAGE_SIZE": 16,
        "EPS": 1e-6,
        "NORM": norm,
        "WRITE_KV": write_kv,
        "HAS_DELTA": delta,
        "BLOCK_HEADS": BLOCK_HEADS,
        "BLOCK_HALF": triton.next_power_of_2(head_dim // 2),
        "PROGRAMMATIC": True,
    }
    types = dict.fromkeys(("q", "k", "v", "q_weight", "k_weight", "kv_cache"), element)
    types |= {"position_ids": "i64", "cache_slots": "i64", "cos_sin_cache": "fp32"} | delta_pointers(delta, element)
    return Launch(_qk_norm_rope_kernel, types, constants, rope_warps(head_dim))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("width", HIDDEN_SIZES)
def test_rms_norm(width: int, granularity: str) -> None:
    if granularity == "group" and width <= 128:
        pytest.skip("one group is a whole token")
    parameters = {"weight", "static_scale"} if granularity == "static" else {"weight"}
    for add, delta in ((True, False), (False, False), (True, True)):
        launch = rms_norm(width, granularity, add=add, delta=delta)
        assert launch.resources().stack_bytes == 0 or (delta and width > WIDEST_WITH_DELTA)
        assert launch.read_before_wait() == parameters | (READ_OF_ADAPTERS if delta else set())


@pytest.mark.parametrize("width", HIDDEN_SIZES)
def test_a_sum_of_squares_has_one_order(width: int) -> None:
    """Which values a thread adds up is in the layout, which neither a delta nor a quantisation changes."""
    layouts = set()
    for granularity in GRANULARITIES if width > 128 else ["", "token", "static"]:
        for add, delta in ((True, False), (False, False), (True, True)):
            code = rms_norm(width, granularity, add=add, delta=delta).assembly("ttgir")
            name = re.search(r'"tt.reduce".*?\}\) : \(tensor<\w+, (#\w+)>\)', code, re.DOTALL)
            assert name is not None
            layout = re.search(rf"^{name[1]} = (.*)$", code, re.MULTILINE)
            assert layout is not None
            layouts.add(layout[1])
    assert len(layouts) == 1


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("width", INTERMEDIATE_SIZES)
def test_silu_and_mul(width: int, granularity: str) -> None:
    if granularity == "group" and width <= 128:
        pytest.skip("one group is a whole token")
    parameters = {"static_scale"} if granularity == "static" else set()
    for delta in (False, True):
        launch = silu_and_mul(width, granularity, delta=delta)
        assert launch.resources().stack_bytes == 0
        assert launch.read_before_wait() == parameters | (READ_OF_ADAPTERS if delta else set())
        assert "ld.global.v4.b32" in launch.assembly("ptx")


@pytest.mark.parametrize("delta", [False, True])
def test_whole_rows_and_deltas_are_loaded_before_anything_is_computed(delta: bool) -> None:
    branch_or_arithmetic = r"\bbra\b|\b(?:add|mul|fma)\.(?:rn\.)?(?:bf16|f32)|cvt\.f32|cvt\.rn\.bf16"
    for launch, load, loads in (
        (rms_norm(5120, "", add=True, delta=delta), "ld.global.v2.b32", 5 * (3 if delta else 2)),
        (silu_and_mul(25600, "", delta=delta), "ld.global.v4.b32", 4 if delta else 2),
    ):
        behind_wait = launch.assembly("ptx").partition("griddepcontrol.wait")[2]
        assert re.split(branch_or_arithmetic, behind_wait, maxsplit=1)[0].count(load) == loads


@pytest.mark.parametrize("element", ["fp32", "fp16"])
def test_other_dtypes(element: str) -> None:
    for delta in (False, True):
        launches = (
            rms_norm(5120, "", add=True, delta=delta, element=element),
            silu_and_mul(25600, "", delta=delta, element=element),
        )
        for launch in launches:
            assert launch.resources().stack_bytes == 0


@pytest.mark.parametrize("part_columns", [PART_COLUMNS, BLOCK_N])
@pytest.mark.parametrize("width", INTERMEDIATE_SIZES)
def test_quantize_by_maxima(width: int, part_columns: int) -> None:
    launch = quantize_by_maxima(width, part_columns)
    assert launch.resources().stack_bytes == 0
    assert launch.read_before_wait() == set()


@pytest.mark.parametrize("granularity", GRANULARITIES[1:])
@pytest.mark.parametrize("width", [64, 1024, 5120, 8192, 12288, 25600, 32768])
def test_quantize(width: int, granularity: str) -> None:
    launch = quantize(width, granularity)
    assert launch.resources().stack_bytes == 0
    assert launch.read_before_wait() == ({"static_scale"} if granularity == "static" else set())
    assert "cvt.rn.satfinite.e4m3x2" in launch.assembly("ptx")


@pytest.mark.parametrize(
    ("norm", "write_kv", "delta"),
    [
        (True, True, False),
        (True, False, False),
        (False, True, False),
        (False, False, False),
        (True, True, True),
        (False, True, True),
    ],
)
@pytest.mark.parametrize("head_dim", [24, 64, 80, 128, 256])
@pytest.mark.parametrize("element", ["bf16", "fp32"])
def test_qk_norm_rope(element: str, head_dim: int, norm: bool, write_kv: bool, delta: bool) -> None:
    launch = qk_norm_rope(head_dim, element, norm=norm, write_kv=write_kv, delta=delta)
    resources = launch.resources()
    assert resources.stack_bytes == 0
    assert resources.shared_bytes == 0, "threads of several warps exchange data"
    weights = {"q_weight", "k_weight"} if norm else set()
    slots = {"cache_slots"} if write_kv else set()
    adapters = READ_OF_ADAPTERS if delta else set()
    assert launch.read_before_wait() == {"position_ids", "cos_sin_cache"} | weights | slots | adapters
