"""`tensorrt-lora trace`: mistakes here; what it draws and says in `tests/bench/`."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tensorrt_lora.bench.bench_mode import BenchPlan
from tensorrt_lora.cli import trace as trace_module
from tensorrt_lora.cli.main import app
from tensorrt_lora.lora.lora_plan import LoraPlan


def test_an_unknown_preset(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["trace", "--preset", "nothing", "--output", str(tmp_path / "new")])
    assert result.exit_code == 2 and "no preset 'nothing'" in result.output
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_needs_cuda(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["trace", "--preset", "tiny", "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert "device='cuda'" in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("name", "plan"), [("base", None), ("tuned", "tuned"), *((plan.value, plan) for plan in LoraPlan)]
)
def test_plans(name: str, plan: BenchPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BenchPlan] = []

    def stop(preset: str, workload: object, plan: BenchPlan, **_: object) -> None:
        seen.append(plan)
        raise ValueError("enough")

    monkeypatch.setattr(trace_module, "trace_decode_step", stop)
    result = CliRunner().invoke(app, ["trace", "--preset", "tiny", "--plan", name, "--output", str(tmp_path)])
    assert "enough" in result.output and seen == [plan]


@pytest.mark.gpu
def test_writes_trace_and_summary(tmp_path: Path) -> None:
    options = ["--preset", "tiny", "--isl", "16", "--lora-rank", "8", "--output", str(tmp_path)]
    result = CliRunner().invoke(app, ["trace", *options])
    assert result.exit_code == 0, result.output
    for suffix in ("json", "md"):
        assert (tmp_path / f"trace-tiny-both_beside-c1.{suffix}").stat().st_size > 0
    assert "LoRA kernels run in" in result.output
