"""Mean and percentiles, against values by hand."""

import pytest

from tensorrt_lora.bench.percentiles import Percentiles


def test_interpolates_between_values() -> None:
    found = Percentiles.of([4.0, 1.0, 2.0, 3.0, 10.0])
    assert (found.mean, found.p50) == (4.0, 3.0)
    # Places 3.6 and 3.96 of 0 to 4, between 4 and 10.
    assert found.p90 == pytest.approx(4.0 + 0.6 * 6.0)
    assert found.p99 == pytest.approx(4.0 + 0.96 * 6.0)


def test_of_one_value() -> None:
    assert Percentiles.of([7.0]) == Percentiles(7.0, 7.0, 7.0, 7.0)


def test_of_two_values() -> None:
    assert Percentiles.of([1.0, 0.0]).p50 == 0.5
