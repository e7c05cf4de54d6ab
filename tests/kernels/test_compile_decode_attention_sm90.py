"""The decode attention kernel compiles for sm_90, fits with next to no spills, and reads only parameters early."""

import re

import pytest
import triton

from tensorrt_lora.kernels.decode_attention_config import BLOCK_HEADS, decode_attention_config
from tensorrt_lora.kernels.decode_attention_kernel import _fused_decode_attention_kernel
from tensorrt_lora.kernels.qk_norm_rope import BLOCK_HEADS as ROPE_BLOCK_HEADS
from tensorrt_lora.kernels.qk_norm_rope import num_warps as rope_warps
from tensorrt_lora.kernels.qk_norm_rope_kernel import _qk_norm_rope_kernel
from tests.support.sm90 import assembly_sm90, compile_sm90, read_before_wait

POINTERS = {
    **dict.fromkeys(("q", "k", "v", "q_weight", "k_weight", "kv_cache", "out", "delta", "b_pool"), "bf16"),
    **dict.fromkeys(("cos_sin_cache", "sums", "stats"), "fp32"),
    **dict.fromkeys(("indptr", "page_ids", "last_page_len", "slice_tokens", "counters"), "i32"),
    **dict.fromkeys(("page_table", "rank", "extras", "token_slots"), "i32"),
    "position_ids": "i64",
}
TABLES = {"indptr", "page_ids", "last_page_len", "slice_tokens", "position_ids", "cos_sin_cache"}
ADAPTERS = {"rank", "extras", "token_slots"}
# head size, query heads of a key head, page size, requests, norms
CASES = [
    (128, 8, 16, 1, True),
    (128, 8, 16, 4, True),
    (128, 8, 16, 16, True),
    (128, 8, 16, 64, True),
    (128, 8, 64, 1, True),
    (128, 4, 16, 1, False),
    (128, 1, 16, 1, True),
    (128, 16, 32, 1, True),
    (128, 5, 16, 2, True),
    (64, 3, 16, 1, False),
    (64, 8, 16, 1, True),
    (256, 4, 16, 1, True),
]


def constants(
    head_dim: int, group: int, page_size: int, requests: int, norm: bool, delta: bool = False
) -> dict[str, object]:
    config = decode_attention_config(requests, 8, head_dim, 2**16)
    return {
        "GROUP": group,
        "KV_HEADS": 8,
        "HEAD_DIM": head_dim,
        "PAGE_SIZE": page_size,
        "EPS": 1e-6,
        "NORM": norm,
        "HAS_DELTA": delta,
        "SPLITS": config.splits,
        "BLOCK_HEADS": BLOCK_HEADS,
        "BLOCK_GROUP": triton.next_power_of_2(group),
        "BLOCK_HALF": triton.next_power_of_2(head_dim // 2),
        "BLOCK_DIM": triton.next_power_of_2(head_dim),
        "BLOCK_TOKENS": config.block_tokens,
        "PREFETCH": True,
        "PROGRAMMATIC": True,
    }


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_fits_and_waits(case: tuple[int, int, int, int, bool], delta: bool) -> None:
    config = decode_attention_config(case[3], 8, case[0], 2**16)
    constexprs = constants(*case, delta)
    resources = compile_sm90(_fused_decode_attention_kernel, POINTERS, constexprs, config.num_warps, config.num_stages)
    assert resources.stack_bytes <= 8, "once, in a merge of 16 slices without norms"
    assert resources.shared_bytes <= 75 * 1024, "three programs to an SM, or one beside the kernel in front"
    code = assembly_sm90(_fused_decode_attention_kernel, POINTERS, constexprs, config.num_warps)
    weights = {"q_weight", "k_weight"} if case[-1] else set()
    adapters = ADAPTERS if delta else set()
    assert read_before_wait(_fused_decode_attention_kernel, POINTERS, code) == TABLES | weights | adapters
    before, _, after = code.partition("griddepcontrol.wait")
    assert "griddepcontrol.launch_dependents" in before and "cp.async.bulk.prefetch.L2.global" in before
    assert "mma.sync" in after and "cp.async.cg.shared" in after


@pytest.mark.parametrize("deltas", [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_sums_of_squares_have_the_order_of_qk_norm_rope(head_dim: int, deltas: tuple[bool, bool]) -> None:
    """So keys in the cache have the same bits, whichever kernel wrote them, and whichever added their delta."""
    config = decode_attention_config(1, 8, head_dim, 2**16)
    fused = assembly_sm90(
        _fused_decode_attention_kernel,
        POINTERS,
        constants(head_dim, 8, 16, 1, True, deltas[0]),
        config.num_warps,
        stage="ttgir",
    )
    half = triton.next_power_of_2(head_dim // 2)
    model = {"HEAD_DIM": head_dim, "PAGE_SIZE": 16, "EPS": 1e-6, "NORM": True, "BLOCK_HALF": half, "PROGRAMMATIC": True}
    alone = assembly_sm90(
        _qk_norm_rope_kernel,
        POINTERS | {"cache_slots": "i64"},
        model | {"HEADS": 64, "KV_HEADS": 8, "WRITE_KV": True, "HAS_DELTA": deltas[1], "BLOCK_HEADS": ROPE_BLOCK_HEADS},
        rope_warps(head_dim),
        stage="ttgir",
    )
    assert _layouts_of_norms(fused) == _layouts_of_norms(alone)


def _layouts_of_norms(code: str) -> set[str]:
    """How the threads of a warp share a head."""
    names = re.findall(r'square_sum\w* = "tt.reduce".*?\}\) : \(tensor<\w+, (#\w+)>\)', code, re.DOTALL)
    assert names
    layouts = (re.search(rf"^{name} = (.*?), warpsPerCTA", code, re.MULTILINE) for name in names)
    return {layout[1] for layout in layouts if layout is not None}
