"""The floor of a decode step, against bytes counted by hand."""

import pytest

from tensorrt_lora.bench.bench_engine import BenchEngine
from tensorrt_lora.bench.byte_floor import ByteFloor
from tensorrt_lora.bench.workload import Workload

FLOOR = ByteFloor(weights=1000, kv_per_token=10, adapters=(50, 60, 10, 1000))


def test_step_bytes() -> None:
    workload = Workload(isl=20, osl=8, concurrency=3, mix="distinct")
    # Decode steps read 21 to 27 tokens of each of the three requests: 24 on average.
    assert FLOOR.step_bytes(workload, with_adapters=False) == 1000 + 3 * 24 * 10
    assert FLOOR.step_bytes(workload, with_adapters=True) == 1000 + 3 * 24 * 10 + 50 + 60 + 10


def test_an_adapter_counts_once() -> None:
    assert FLOOR.adapter_bytes(Workload(isl=20, osl=8, concurrency=5, mix="distinct", max_adapters=2)) == 110


def test_milliseconds() -> None:
    workload = Workload(isl=20, osl=8, concurrency=1)
    assert FLOOR.milliseconds(workload, 1e6, with_adapters=True) == pytest.approx((1000 + 240 + 50) / 1e6 * 1e3)


def test_bytes_of_the_tiny_preset() -> None:
    engine = BenchEngine("tiny", [Workload(4, 2, 2, "distinct")], lora_ranks=[4, 8], plans=(None,), device="cpu")
    floor = ByteFloor.of(engine.loaded, engine.adapter_bytes)
    engine.close()
    hidden, intermediate, q, kv = 256, 512, 256, 128
    projections = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * intermediate
    norms = 2 * hidden + 2 * 128
    head = 512 * hidden + hidden  # and the final norm; the embedding is not read
    assert floor.weights == 2 * (2 * (projections + norms) + head)
    assert floor.kv_per_token == 2 * 2 * kv * 2
    widths = (hidden + q) + 2 * (hidden + kv) + (q + hidden) + 3 * (hidden + intermediate)
    assert floor.adapters == (2 * 4 * widths * 2, 2 * 8 * widths * 2)
