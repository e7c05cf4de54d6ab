"""A tuning run with a clock of its own: which rows there are, and what becomes of a plan that does not run."""

from collections.abc import Callable, Sequence

import pytest
import torch

from tensorrt_lora.bench import plan_bench
from tensorrt_lora.bench.plan_bench import PlanBench
from tensorrt_lora.bench.plan_case import PlanCase
from tensorrt_lora.bench.plan_options import PlanOptions
from tensorrt_lora.lora.batch_kind import BatchKind
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable, PlanTableFile, PlanTimes

CPU = torch.device("cpu")
OPTIONS = PlanOptions(presets=("tiny",), tokens=(1, 3, 65), ranks=(16, 8), adapters=2)


class CountedGraph:
    """In place of a timed graph: runs the calls once."""

    made = 0

    def __init__(self, calls: Sequence[Callable[[], torch.Tensor]], device: torch.device) -> None:
        CountedGraph.made += 1
        for call in calls:
            call()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base takes 1 us, the plans 2 us and so on in their order."""
    monkeypatch.setattr("tensorrt_lora.bench.plan_case._ROTATED_BYTES", 1)
    monkeypatch.setattr(CountedGraph, "made", 0)
    monkeypatch.setattr(plan_bench, "TimedGraph", CountedGraph)
    monkeypatch.setattr(
        plan_bench, "time_in_turn", lambda graphs, repeats: [1e-6 * (1 + index) for index in range(len(graphs))]
    )


def run(names: Sequence[str]) -> list[list[PlanTimes]]:
    saved: list[list[PlanTimes]] = []
    projections = {name: projection for name, projection in OPTIONS.projections().items() if name in names}
    PlanBench(projections, OPTIONS, device=CPU).run(lambda rows: saved.append(list(rows)))
    return saved


def test_a_row_for_every_kind_of_batch() -> None:
    saved = run(["tiny o", "tiny down"])
    assert [[row.shape.in_features for row in rows] for rows in saved] == [[256] * 10, [512] * 10]
    kinds = [
        BatchKind(tokens, many, rank)
        for rank in (8, 16)
        for tokens, many in [(1, False), (3, False), (3, True), (65, False), (65, True)]
    ]
    for rows in saved:
        assert [row.kind for row in rows] == kinds
        for row in rows:
            plans = ["sequential", "shrink_beside", "both_beside", *["fused"] * (row.tokens < 65), "add_in_consumer"]
            assert row.base == 1.0 and row.microseconds == dict(zip(plans, (2.0, 3.0, 4.0, 5.0, 6.0), strict=False))
    # The base's graphs, one for each number of tokens, serve all ranks and kinds.
    assert CountedGraph.made == 2 * (3 + 2 * (3 * 5 + 2 * 4))


def test_rows_make_a_table() -> None:
    (rows,) = run(["tiny o"])
    table = LoraPlanTable.of(PlanTableFile(device="cpu", measured_with={}, rows=rows), "a test")
    shape = rows[0].shape
    for kind in (BatchKind(2, False, 5), BatchKind(2, True, 16), BatchKind(64, True, 8)):
        assert table.plans(kind, tuple(LoraPlan)).plan_for(shape) is LoraPlan.SEQUENTIAL


def test_a_plan_that_does_not_run_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    links = PlanCase.links

    def fail(self: PlanCase, plan: LoraPlan | None) -> list[Callable[[], torch.Tensor]]:
        if plan is LoraPlan.FUSED:
            raise RuntimeError("out of shared memory\nRequired: 1")
        return links(self, plan)

    monkeypatch.setattr(PlanCase, "links", fail)
    (rows,) = run(["tiny o"])
    others = ["sequential", "shrink_beside", "both_beside", "add_in_consumer"]
    assert all(list(row.microseconds) == others for row in rows)
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 6
    assert warnings[0] == (
        "tiny o, 1 tokens, one adapter of rank 8: fused is left out: RuntimeError: out of shared memory"
    )


def test_a_base_that_does_not_run_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: PlanCase, plan: LoraPlan | None) -> list[Callable[[], torch.Tensor]]:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(PlanCase, "links", fail)
    with pytest.raises(RuntimeError, match="no kernel image"):
        run(["tiny o"])
