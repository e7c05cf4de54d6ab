"""The tax over base: within repeats, so that what drifts cancels."""

import pytest

from tensorrt_lora.bench.batch_run import BatchTimes
from tensorrt_lora.bench.latency_records import median_tax


def batches(*seconds: float) -> list[BatchTimes]:
    return [BatchTimes(e2e, 0.1, 10, 0.5) for e2e in seconds]


def test_pairs_repeats() -> None:
    # Everything doubles in the third repeat; the tax does not.
    assert median_tax(batches(1.1, 1.2, 2.4), batches(1.0, 1.0, 2.0)) == pytest.approx(0.2)
    assert median_tax(batches(1.1), None) is None


def test_ms_per_token() -> None:
    assert BatchTimes(1.1, 0.1, 10, 0.5).ms_per_token == pytest.approx(100.0)
