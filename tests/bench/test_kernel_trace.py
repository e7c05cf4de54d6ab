"""Reading Chrome traces: kernels alone, in order, with their streams."""

from pathlib import Path

import pytest
import torch

from tensorrt_lora.bench.kernel_trace import KernelRun, main_stream, profile_kernels, read_kernels, stream_use

MAIN, AUX = 7, 20


def test_reads_the_kernels_in_order_of_time(trace_file: Path) -> None:
    kernels = read_kernels(trace_file)
    assert len(kernels) == 4 * 7
    assert [kernel.start for kernel in kernels] == sorted(kernel.start for kernel in kernels)
    first = kernels[0]
    assert first.name.startswith("nvjet") and first.stream == MAIN
    assert (first.start, first.end, first.duration) == (1000.0, 1030.0, 30.0)


def test_stream_use(kernels: list[KernelRun]) -> None:
    assert main_stream(kernels, pattern="lora") == MAIN
    use = stream_use(kernels, pattern="lora")
    assert use.main == [] and len(use.others) == 4 * 3
    assert all(kernel.stream == AUX for kernel in use.others)
    without_lora = [kernel for kernel in kernels if "lora" not in kernel.name]
    attention = stream_use(without_lora, pattern="BatchDecode")
    assert len(attention.main) == 4 and attention.others == []


def test_intersection() -> None:
    kernel = KernelRun("a", 0, 10.0, 20.0)
    assert kernel.overlap(KernelRun("b", 1, 15.0, 30.0)) == 5.0
    assert kernel.overlap(KernelRun("b", 1, 12.0, 14.0)) == 2.0
    assert not kernel.intersects(KernelRun("b", 1, 20.0, 30.0))
    assert kernel.overlap(KernelRun("b", 1, 40.0, 50.0)) == 0.0


@pytest.mark.gpu
def test_profiles_what_runs() -> None:
    x = torch.ones(1 << 20, device="cuda")
    runs: list[int] = []

    def run() -> None:
        runs.append(len(runs))
        x.add_(1.0)

    kernels = profile_kernels(run)
    assert len(kernels) == 1 and "elementwise" in kernels[0].name
    assert kernels[0].duration > 0 and len(runs) == 2
