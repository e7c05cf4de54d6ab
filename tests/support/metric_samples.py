"""What a server's /metrics says, as numbers."""

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families


class MetricSamples:
    """One scrape. Samples are found by name, without the prefix, and labels."""

    def __init__(self, text: str) -> None:
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    @classmethod
    def of(cls, url: str) -> "MetricSamples":
        """Scrape a server."""
        response = httpx.get(f"{url}/metrics", timeout=30)
        assert response.status_code == 200
        return cls(response.text)

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self._values}

    def __call__(self, name: str, **labels: str) -> float:
        """The sample with exactly these labels; 0 where it has not been seen."""
        return self._values.get((f"tensorrt_lora_{name}", frozenset(labels.items())), 0.0)

    def with_label(self, name: str, label: str) -> Mapping[str, float]:
        """The sum of the samples of each value of a label."""
        sums: dict[str, float] = {}
        for (found, labels), value in self._values.items():
            if found == f"tensorrt_lora_{name}" and label in dict(labels):
                sums[dict(labels)[label]] = sums.get(dict(labels)[label], 0.0) + value
        return sums
