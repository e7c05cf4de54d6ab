"""What is said of a trace: numbers that can be checked by hand (see `conftest.py`)."""

from pathlib import Path

from rich.console import Console

from tensorrt_lora.bench.kernel_trace import KernelRun
from tensorrt_lora.bench.trace_report import kernel_table, summary_lines, write_markdown


def test_summary(kernels: list[KernelRun]) -> None:
    step, lora = summary_lines(kernels)
    assert "takes 390.0 us" in step and "in 288.0 us of them" in step and "none at all in 66.0 us" in step
    assert "in 116.0 us, 80.0 us of them (69%)" in lora
    assert "8 of 12 LoRA kernels intersect" in lora


def test_summary_without_lora(kernels: list[KernelRun]) -> None:
    base = [kernel for kernel in kernels if "lora" not in kernel.name]
    assert len(list(summary_lines(base))) == 1


def test_table_sums_microseconds(kernels: list[KernelRun]) -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(kernel_table(kernels))
    rows = [line.split() for line in capture.get().splitlines() if "shrink" in line]
    assert rows == [["_lora_shrink_kernel", "LoRA", "8", "56.0", "16.0", "2.00", "4.1%"]]


def test_markdown(kernels: list[KernelRun], tmp_path: Path) -> None:
    path = tmp_path / "trace.md"
    write_markdown(
        kernels,
        path,
        title="A step",
        command="tensorrt-lora trace --preset x",
        facts=["commit: 123"],
        figure=tmp_path / "trace.png",
    )
    text = path.read_text()
    assert text.startswith("# A step\n\n    tensorrt-lora trace --preset x\n\n- commit: 123\n")
    assert "(trace.png)" in text
    assert "| `_lora_shrink_kernel` | LoRA | 8 | 56.0 | 16.0 | 2.00 | 4.1% |" in text
    assert "| `_lora_shrink_kernel` | `nvjet_tst_64x8_64x16_4x1_v_bz_TNT` | 4 | 40.0 | 40.0 |" in text
    assert "| `_lora_shrink_kernel` | none | 4 | 16.0 | 0.0 |" in text
