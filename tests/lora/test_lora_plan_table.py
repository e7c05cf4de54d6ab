import json
from pathlib import Path

import pytest

from tensorrt_lora.lora.batch_kind import BatchKind
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plan_table import (
    LoraPlanTable,
    PlanTableFile,
    PlanTimes,
    default_plan,
)
from tensorrt_lora.lora.lora_plans import LoraPlans, ProjectionShape

SHAPE = ProjectionShape(5120, 10240, 1)
ON_ONE_STREAM = (LoraPlan.SEQUENTIAL, LoraPlan.FUSED)


def make_file() -> PlanTableFile:
    times = {
        (1, 16): {"sequential": 9.0, "fused": 3.0, "both_beside": 4.0},
        (1, 64): {"sequential": 9.0, "fused": 5.0, "both_beside": 4.0},
        (8, 16): {"sequential": 2.0, "fused": 3.0},
    }
    rows = [
        PlanTimes(
            in_features=5120,
            out_features=10240,
            itemsize=1,
            tokens=tokens,
            many=False,
            rank=rank,
            base=1.0,
            microseconds=microseconds,
        )
        for (tokens, rank), microseconds in times.items()
    ]
    return PlanTableFile(device="NVIDIA X", measured_with={"torch": "2"}, rows=rows)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    make_file().write(path)
    assert len(path.read_text().splitlines()) == 5, "a row on each line"
    assert LoraPlanTable.read(path).rows == LoraPlanTable.of(make_file(), "").rows


def test_the_fastest_allowed_plan_of_the_next_row_up() -> None:
    table = LoraPlanTable.of(make_file(), "a test")

    def plan(tokens: int, rank: int, allowed: tuple[LoraPlan, ...] = tuple(LoraPlan)) -> LoraPlan:
        return table.plans(BatchKind(tokens, False, rank), allowed).plan_for(SHAPE)

    assert plan(1, 8) is plan(1, 16) is LoraPlan.FUSED
    assert plan(1, 17) is plan(1, 128) is LoraPlan.BOTH_BESIDE
    assert plan(1, 17, ON_ONE_STREAM) is LoraPlan.FUSED
    assert plan(2, 16) is plan(8, 64) is LoraPlan.SEQUENTIAL
    assert plan(9, 16) is LoraPlan.ADD_IN_CONSUMER, "beyond the table: the rule"


@pytest.mark.parametrize(
    ("microseconds", "plan"),
    [
        ({"sequential": 10.0, "fused": 10.2, "add_in_consumer": 10.25}, LoraPlan.ADD_IN_CONSUMER),  # the rule's
        ({"shrink_beside": 10.25, "both_beside": 10.0, "fused": 10.1}, LoraPlan.SHRINK_BESIDE),  # the simplest
        ({"shrink_beside": 10.4, "both_beside": 10.0, "fused": 10.4}, LoraPlan.BOTH_BESIDE),
        ({}, LoraPlan.ADD_IN_CONSUMER),
    ],
)
def test_what_counts_as_equally_fast(microseconds: dict[str, float], plan: LoraPlan) -> None:
    content = make_file()
    row = content.rows[0].model_copy(update={"microseconds": microseconds})
    table = LoraPlanTable.of(content.model_copy(update={"rows": [row]}), "a test")
    assert table.plans(row.kind, tuple(LoraPlan)).plan_for(SHAPE) is plan


def test_narrowed_to_the_shapes_of_a_model() -> None:
    table = LoraPlanTable.of(make_file(), "a test")
    assert table.narrowed({SHAPE}) == table
    assert table.narrowed({ProjectionShape(5120, 10240, 2)}) == LoraPlanTable("a test")


def test_the_rule_where_nothing_was_measured() -> None:
    table = LoraPlanTable.of(make_file(), "a test")
    one, many = BatchKind(8, False, 16), BatchKind(8, True, 16)
    assert default_plan(one, tuple(LoraPlan)) is default_plan(many, tuple(LoraPlan)) is LoraPlan.ADD_IN_CONSUMER
    assert default_plan(many, ON_ONE_STREAM) is LoraPlan.FUSED
    assert default_plan(BatchKind(65, False, 16), ON_ONE_STREAM) is LoraPlan.SEQUENTIAL, "too many to be fused"
    assert default_plan(BatchKind(256, True, 16), tuple(LoraPlan)) is LoraPlan.ADD_IN_CONSUMER
    assert default_plan(BatchKind(257, True, 16), tuple(LoraPlan)) is LoraPlan.EXPAND_IN_CONSUMER, "a delta is too long"
    other = ProjectionShape(1, 2, 2)
    assert table.plans(one, tuple(LoraPlan)).plan_for(other) is LoraPlan.ADD_IN_CONSUMER
    assert table.plans(many, tuple(LoraPlan)) == LoraPlans(LoraPlan.ADD_IN_CONSUMER), "no row of several adapters"


def test_plans_say_what_they_are() -> None:
    plans = LoraPlans(LoraPlan.FUSED, ((SHAPE, LoraPlan.SEQUENTIAL),))
    assert str(plans) == "fused; 5120x10240 of 1 byte: sequential"
    assert str(LoraPlans(LoraPlan.FUSED)) == "fused"


def test_a_device_without_a_table_has_an_empty_one() -> None:
    table = LoraPlanTable.shipped("NVIDIA No Such Device")
    assert not table.rows and "NVIDIA No Such Device" in table.source


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no plan table"),
        (json.dumps({"device": "x", "measured_with": {}, "rows": [{"tokens": 0}]}), r"rows\.0"),
        (json.dumps({"device": "x", "measured_with": {}, "rows": [], "more": 1}), "more"),
    ],
)
def test_other_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        LoraPlanTable.read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        LoraPlanTable.read(tmp_path / "no.json")
