"""Arrivals, lengths and adapters of a stream."""

import math
import statistics
from itertools import pairwise

import pytest

from tensorrt_lora.bench.throughput_workload import ThroughputWorkload
from tensorrt_lora.bench.workload import Workload


def test_arrivals_are_a_poisson_process() -> None:
    arrivals = ThroughputWorkload(8, 8, 0.0, 4001).arrivals(4.0)
    gaps = [after - before for before, after in pairwise(arrivals)]
    assert arrivals[0] == 0.0 and min(gaps) > 0.0
    # Exponential: mean and standard deviation are 1 / rate, and the median is ln 2 of it.
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.07)
    assert statistics.median(gaps) == pytest.approx(0.25 * math.log(2), rel=0.07)


def test_rates_share_one_draw() -> None:
    workload = ThroughputWorkload(8, 8, 0.5, 20, seed=5)
    assert workload.arrivals(8.0) == pytest.approx([2 * due for due in workload.arrivals(16.0)])
    assert workload.arrivals(math.inf) == [0.0] * 20
    assert workload.arrivals(8.0) != ThroughputWorkload(8, 8, 0.5, 20, seed=6).arrivals(8.0)


def test_fixed_lengths() -> None:
    workload = ThroughputWorkload(5, 3, 0.0, 4)
    assert {(len(request.prompt), request.num_tokens) for request in workload.requests(50)} == {(5, 3)}
    assert (workload.max_isl, workload.max_osl) == (5, 3)


def test_lengths_are_spread_evenly() -> None:
    workload = ThroughputWorkload(20, 10, 0.5, 2000)
    requests = workload.requests(50)
    inputs, outputs = [len(request.prompt) for request in requests], [request.num_tokens for request in requests]
    assert set(inputs) == set(range(10, 31)) and set(outputs) == set(range(5, 16))
    assert (workload.max_isl, workload.max_osl) == (30, 15)
    assert statistics.fmean(inputs) == pytest.approx(20, rel=0.03)
    assert abs(statistics.correlation(inputs, outputs)) < 0.1


def test_shortest_lengths() -> None:
    requests = ThroughputWorkload(1, 2, 0.9, 100).requests(50)
    assert {len(request.prompt) for request in requests} == {1, 2}
    assert {request.num_tokens for request in requests} == {2, 3, 4}


def test_equal_streams_for_equal_seeds() -> None:
    workload = ThroughputWorkload(6, 6, 0.5, 10, "zipf", 4, seed=1)
    requests = workload.requests(50)
    assert requests == workload.requests(50)
    assert all(0 <= token < 50 for request in requests for token in request.prompt)
    assert [request.adapter for request in requests] == Workload(6, 6, 10, "zipf", 4, 1).adapter_ids()
    assert workload.num_adapters == len({request.adapter for request in requests})
    assert workload.batch(3) == Workload(9, 9, 3, "zipf", 4, 1)
