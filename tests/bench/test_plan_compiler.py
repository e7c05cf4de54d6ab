"""Compiling ahead, with threads in place of processes: every case is run, and failures are left to the measurement."""

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor

import pytest
import torch

from tensorrt_lora.bench import plan_compiler
from tensorrt_lora.bench.bench_progress import bench_progress
from tensorrt_lora.bench.plan_case import PlanCase
from tensorrt_lora.bench.plan_compiler import compile_ahead, run_once
from tensorrt_lora.bench.plan_options import PlanOptions
from tensorrt_lora.lora.lora_plan import LoraPlan

CPU = torch.device("cpu")
OPTIONS = PlanOptions(presets=("tiny",), tokens=(1, 3), ranks=(8, 16), adapters=2)
PROJECTIONS = list(OPTIONS.projections().values())


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        plan_compiler, "ProcessPoolExecutor", lambda max_workers, mp_context: ThreadPoolExecutor(max_workers)
    )


def test_every_case_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(plan_compiler, "run_once", lambda projection, kinds, *_: calls.append((projection, *kinds)))
    with bench_progress(enabled=False) as bar:
        compile_ahead(PROJECTIONS, OPTIONS, CPU, processes=2, bar=bar)
    kinds = [kind for rank in OPTIONS.ranks for kind in OPTIONS.kinds(rank)]
    run = [(projection, kind) for projection, *of_job in calls for kind in of_job]
    assert sorted(run, key=str) == sorted(((p, kind) for p in PROJECTIONS for kind in kinds), key=str)


def test_every_plan_is_launched_and_a_failure_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[LoraPlan | None] = []
    links = PlanCase.links

    def watch(self: PlanCase, plan: LoraPlan | None) -> list[Callable[[], torch.Tensor]]:
        seen.append(plan)
        if plan is LoraPlan.SHRINK_BESIDE:
            raise RuntimeError("out of resources")
        return links(self, plan)

    monkeypatch.setattr(PlanCase, "links", watch)
    run_once(PROJECTIONS[0], OPTIONS.kinds(16), OPTIONS, CPU)
    plans = [plan for plan in LoraPlan if plan is not LoraPlan.EXPAND_IN_CONSUMER]  # of q, k and v
    assert seen == [None, *plans] * 3


def test_a_process_that_dies_ends_compiling_ahead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def die(*_: object) -> None:
        raise BrokenExecutor

    monkeypatch.setattr(plan_compiler, "run_once", die)
    with bench_progress(enabled=False) as bar:
        compile_ahead(PROJECTIONS, OPTIONS, CPU, processes=1, bar=bar)
    assert "a compiling process died" in capsys.readouterr().err
