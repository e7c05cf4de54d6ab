"""A captured decode step of the tiny preset under the profiler."""

from pathlib import Path

import pytest
import torch

from tensorrt_lora.bench.decode_trace import trace_decode_step
from tensorrt_lora.bench.kernel_trace import read_kernels, stream_use
from tensorrt_lora.bench.workload import Workload
from tensorrt_lora.lora.lora_plan import LoraPlan

WORKLOAD = Workload(isl=16, osl=32, concurrency=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_needs_cuda(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device='cuda'"):
        trace_decode_step("tiny", WORKLOAD, None, lora_rank=8, path=tmp_path / "trace.json")


@pytest.mark.gpu
@pytest.mark.parametrize("plan", [None, *LoraPlan])
def test_lora_kernels_are_where_the_plan_puts_them(plan: LoraPlan | None, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    kernels, num_layers = trace_decode_step("tiny", WORKLOAD, plan, lora_rank=8, path=path)
    assert num_layers == 2
    assert read_kernels(path) == kernels
    shrink, expand = (stream_use(kernels, pattern=f"lora_{half}") for half in ("shrink", "expand"))
    per_step = 0 if plan is None else 4 * num_layers  # qkv, o, gate and up, down
    in_base = {LoraPlan.FUSED: per_step, LoraPlan.EXPAND_IN_CONSUMER: num_layers}.get(plan, 0) if plan else 0
    assert len(shrink.main) + len(shrink.others) == len(expand.main) + len(expand.others) == per_step - in_base
    assert len(stream_use(kernels, pattern="lora_linear").main) == in_base
    consumers = stream_use(kernels, pattern="lora_silu_and_mul").main
    assert len(consumers) == (num_layers if plan is LoraPlan.EXPAND_IN_CONSUMER else 0)
    assert bool(shrink.others) is (plan is not None and (plan.uses_aux_stream or plan.leaves_delta))
    assert bool(expand.others) is (plan is not None and (plan.has_delta or plan.leaves_delta))
    adds = stream_use(kernels, pattern="lora_add").main
    assert len(adds) == (per_step if plan is LoraPlan.BOTH_BESIDE else 0)
