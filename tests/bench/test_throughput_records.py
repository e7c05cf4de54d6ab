"""From the times of requests to the numbers of a cell."""

import pytest

from tensorrt_lora.bench.percentiles import Percentiles
from tensorrt_lora.bench.throughput_records import StreamTimes
from tensorrt_lora.bench.throughput_run import RequestTimes


def test_of_a_stream() -> None:
    times = StreamTimes.of(
        [
            RequestTimes(due=0.0, submitted=0.0, tokens=[0.5, 0.6, 1.0]),
            RequestTimes(due=1.0, submitted=1.1, tokens=[2.0, 2.2]),
            RequestTimes(due=1.5, submitted=1.6, tokens=[2.5, 4.0]),
        ]
    )
    assert times.duration_s == 4.0
    assert times.achieved_rate == pytest.approx(2 / 1.6)
    assert times.requests_per_s == 0.75 and times.tokens_per_s == 1.75
    assert times.mean_concurrency == pytest.approx((1.0 + 1.2 + 2.5) / 4.0)
    assert times.ttft_ms == Percentiles.of([500.0, 1000.0, 1000.0])
    assert times.e2e_s.p50 == pytest.approx(1.2)
    assert times.itl_ms.mean == pytest.approx((100.0 + 400.0 + 200.0 + 1500.0) / 4)
    assert times.itl_ms.p50 == pytest.approx(300.0)


def test_all_at_once_has_no_achieved_rate() -> None:
    assert StreamTimes.of([RequestTimes(0.0, 0.01, [0.1, 0.2]) for _ in range(2)]).achieved_rate is None
