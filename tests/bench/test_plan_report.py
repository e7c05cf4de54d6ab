from rich.console import Console

from tensorrt_lora.bench.plan_report import OTHERS, plan_report
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable, PlanTableFile, PlanTimes
from tensorrt_lora.lora.lora_plans import ProjectionShape

SHAPE = ProjectionShape(256, 512, 2)


def make_row(tokens: int, *, many: bool, **microseconds: float) -> PlanTimes:
    return PlanTimes(
        in_features=256,
        out_features=512,
        itemsize=2,
        tokens=tokens,
        many=many,
        rank=16,
        base=10.0,
        microseconds=microseconds,
    )


TABLE = LoraPlanTable.of(
    PlanTableFile(
        device="NVIDIA X",
        measured_with={},
        rows=[
            make_row(1, many=False, sequential=13.0, fused=10.5),
            make_row(8, many=False, sequential=12.0, fused=14.0, both_beside=11.0),
            make_row(8, many=True, sequential=12.0, shrink_beside=11.5),
        ],
    ),
    "a test",
)


def rows_of(config: LoraConfig, sizes: list[int]) -> list[list[str]]:
    report = plan_report(TABLE, {"o": SHAPE, "others": OTHERS}, sizes, config)
    console = Console(width=120, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(report)
    lines = [line for line in capture.get().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_plans_and_what_they_take() -> None:
    config = LoraConfig(max_lora_rank=16, max_loras=2, overlap_lora_and_base=True)
    assert rows_of(config, [1, 2, 4, 8]) == [
        ["1 to 8", "none", "", "not in the graph", "not in the graph"],
        ["1", "one", "<= 16", "fused +0.5", "add_in_consumer"],
        ["2 to 8", "one", "<= 16", "both_beside +1.0", "add_in_consumer"],
        ["2 to 8", "many", "<= 16", "shrink_beside +1.5", "add_in_consumer"],
    ]


def test_on_one_stream_and_without_specialisation() -> None:
    config = LoraConfig(max_lora_rank=32, max_loras=1, cuda_graph_specialize_lora=False)
    assert rows_of(config, [4]) == [
        ["4", "none", "", "as with one adapter", "as with one adapter"],
        ["4", "one", "<= 32", "sequential +2.0", "fused"],
    ]
