"""Options of the prefill benchmark."""

import pytest

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.prefill_options import PrefillOptions
from tensorrt_lora.bench.workload import Workload


def test_order_and_workloads() -> None:
    options = PrefillOptions(
        preset="tiny", tokens=(64, 16, 64), prompts=4, mix="distinct", modes=(BenchMode.BEST, BenchMode.BASE), seed=3
    )
    assert options.modes == (BenchMode.BASE, BenchMode.BEST)
    assert options.workloads() == [Workload(isl, 1, 4, "distinct", None, 3) for isl in (4, 16)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"preset": "qwen3-9b-bf16"}, "no preset 'qwen3-9b-bf16'"),
        ({"tokens": (0,)}, "tokens holds 0"),
        ({"tokens": (8, 10), "prompts": 4}, "tokens holds 10, which is no multiple of prompts=4"),
        ({"repeats": 0}, "repeats"),
    ],
)
def test_refusals(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefillOptions(**{"preset": "tiny", **fields})
