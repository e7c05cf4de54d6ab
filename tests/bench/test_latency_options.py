"""Options of the latency benchmark: bounds, order, and the workloads that they stand for."""

import pytest

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.latency_options import LatencyOptions
from tensorrt_lora.bench.workload import Workload


def test_sizes_and_modes_are_put_in_order() -> None:
    options = LatencyOptions(preset="tiny", concurrency=(8, 1, 8), modes=(BenchMode.BEST, BenchMode.BASE))
    assert options.concurrency == (1, 8)
    assert options.modes == (BenchMode.BASE, BenchMode.BEST)


def test_workloads() -> None:
    options = LatencyOptions(preset="tiny", isl=5, osl=6, concurrency=(1, 4), mix="distinct", adapters=2, seed=3)
    assert options.workloads() == [Workload(5, 6, size, "distinct", 2, 3) for size in (1, 4)]


def test_ranks() -> None:
    assert LatencyOptions(preset="tiny", lora_rank=8).adapter_ranks == (8,)
    assert LatencyOptions(preset="tiny", lora_ranks=(64, 8)).adapter_ranks == (64, 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"preset": "qwen3-9b-bf16"}, "no preset 'qwen3-9b-bf16'"),
        ({"concurrency": (0, 1)}, "concurrency holds 0"),
        ({"osl": 1}, "osl"),
        ({"modes": ()}, "modes"),
        ({"mix": "random"}, "mix"),
        ({"repeats": 0}, "repeats"),
        ({"lora_ranks": (8, 0)}, "lora_ranks holds 0"),
    ],
)
def test_refusals(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LatencyOptions(**{"preset": "tiny", **fields})
