"""From the times of requests to numbers, checked by hand."""

import pytest

from tensorrt_lora.bench.serve_records import ServedTimes
from tensorrt_lora.bench.stream_clients import StreamedRequest


def test_times() -> None:
    requests = [
        StreamedRequest(sent=10.0, events=[10.5, 10.6, 10.8], done=11.0, num_tokens=4),
        StreamedRequest(sent=10.25, events=[11.0, 11.5], done=12.0, num_tokens=2),
    ]
    times = ServedTimes.of(requests)
    assert (times.served_s, times.tokens, times.tokens_per_event) == (2.0, 6, pytest.approx(1.2))
    assert times.ttft_ms.mean == pytest.approx((500 + 750) / 2)
    assert times.itl_ms.mean == pytest.approx((100 + 200 + 500) / 3)
    assert times.e2e_s.p50 == pytest.approx((1.0 + 1.75) / 2)


def test_one_event_has_no_gaps() -> None:
    times = ServedTimes.of([StreamedRequest(sent=0.0, events=[1.0], done=1.0, num_tokens=2)])
    assert times.itl_ms.p99 == 0.0 and times.tokens_per_event == 2
