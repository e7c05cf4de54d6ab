"""`tensorrt-lora trace`: one decode step of an engine with dummy weights, kernel by kernel.

Owns how the step comes about: a batch is prefilled, some steps pass, the next is profiled.
"""

from pathlib import Path

from tensorrt_lora.bench.bench_engine import BenchEngine
from tensorrt_lora.bench.bench_mode import BenchPlan
from tensorrt_lora.bench.kernel_trace import KernelRun, record_trace
from tensorrt_lora.bench.workload import Workload

_STEPS_BEFORE = 8


def trace_decode_step(
    preset: str,
    workload: Workload,
    plan: BenchPlan,
    *,
    lora_rank: int,
    path: Path,
    progress: bool = False,
) -> tuple[list[KernelRun], int]:
    """Capture the decode step of the workload's batch, replay it under the profiler.

    Args:
        plan: how LoRA runs; None has no adapters.
        path: where the Chrome trace goes.

    Returns:
        The kernels of the step, in order of time, and the number of decoder layers.

    Raises:
        ValueError: no CUDA device, or an attention backend without graphs.
    """
    engine = BenchEngine(preset, [workload], lora_ranks=[lora_rank], plans=(plan,), device="cuda", progress=progress)
    if not engine.engine.graph_runner.enabled:
        raise ValueError("a trace shows a captured step, but the attention of this engine cannot be captured")
    batch = engine.submit(workload, plan)
    batch.prefill()
    for _ in range(_STEPS_BEFORE):
        batch.decode_step()
    kernels = record_trace(batch.decode_step, path)
    engine.close()
    return kernels, engine.loaded.config.num_layers
