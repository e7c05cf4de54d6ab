"""Options of the throughput benchmark: bounds, order, and what goes into the header."""

import json
import math

import pytest

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.throughput_options import ThroughputOptions
from tensorrt_lora.bench.throughput_workload import ThroughputWorkload


def test_rates_and_modes_are_put_in_order() -> None:
    options = ThroughputOptions(
        preset="tiny", request_rate=("inf", 4, 0.5, 4), modes=(BenchMode.BEST, BenchMode.IDLE, BenchMode.BASE)
    )
    assert options.request_rate == (0.5, 4, "inf")
    assert options.modes == (BenchMode.BASE, BenchMode.IDLE, BenchMode.BEST)


def test_the_header_is_plain_json() -> None:
    options = ThroughputOptions(preset="tiny").model_dump(mode="json")
    assert json.loads(json.dumps(options, allow_nan=False))["request_rate"] == [1.0, 4.0, 16.0, "inf"]


def test_workload() -> None:
    options = ThroughputOptions(
        preset="tiny", isl=5, osl=6, length_spread=0.5, num_requests=7, mix="zipf", adapters=3, seed=2
    )
    assert options.workload() == ThroughputWorkload(5, 6, 0.5, 7, "zipf", 3, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"preset": "qwen3-9b-bf16"}, "no preset 'qwen3-9b-bf16'"),
        ({"request_rate": (0.0,)}, "request_rate"),
        ({"request_rate": (math.inf,)}, "request_rate"),
        ({"request_rate": ()}, "request_rate"),
        ({"length_spread": 1.0}, "length_spread"),
        ({"osl": 1}, "osl"),
        ({"num_requests": 0}, "num_requests"),
        ({"modes": ()}, "modes"),
    ],
)
def test_refusals(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThroughputOptions(**{"preset": "tiny", **fields})
