"""What benchmarks say of many values: their mean and some percentiles."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of at least one value, in the values' unit; between two values a percentile is interpolated linearly."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles":
        ordered = sorted(values)
        return cls(statistics.fmean(ordered), *(_quantile(ordered, share) for share in (0.5, 0.9, 0.99)))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = math.ceil(place)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
