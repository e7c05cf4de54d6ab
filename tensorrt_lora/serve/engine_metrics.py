"""The engine's figures as metrics.

Turns one snapshot of `EngineStats` and the adapters' statuses into samples; `ServerMetrics` takes the snapshot, since
asking the engine waits for the end of its step. Counters are the engine's own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tensorrt_lora.adapters.adapter_status import AdapterState, AdapterStatus, AdapterTier
from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.serve.adapter_labels import AdapterLabels

# Name of the metric, what it means, field of `EngineStats`.
_GAUGES = (
    ("requests_running", "Requests with a sequence in the batch.", "requests_running"),
    ("requests_waiting", "Requests that wait for an adapter, a slot, pages or room.", "requests_waiting"),
    ("kv_cache_pages_used", "Pages of the KV cache that requests hold.", "kv_pages_used"),
    ("kv_cache_pages", "Pages of the KV cache.", "kv_pages_total"),
    ("adapter_slots_used", "Adapters on the device.", "slots_used"),
    ("adapter_slots", "Adapters that the device can hold.", "slots_total"),
    ("adapter_host_bytes", "Host memory of adapters.", "adapter_host_bytes"),
    ("adapter_host_limit_bytes", "Host memory that adapters may take.", "adapter_host_bytes_max"),
)
_COUNTERS = (
    ("preemptions", "Sequences that gave back their pages and were computed again.", "preemptions"),
    ("prefix_cache_queried_tokens", "Tokens of sequences that started.", "prefix_queried_tokens"),
    ("prefix_cache_hit_tokens", "Those of them that the prefix cache held.", "prefix_hit_tokens"),
    ("adapter_loads", "Adapters read from disk.", "adapter_loads"),
    ("adapter_load_seconds", "Time that reading them took; loads side by side count each.", "adapter_load_seconds"),
)
# Name, what it means, name of the label, (its value, field) for each.
_LABELLED_COUNTERS = (
    (
        "engine_steps",
        "Steps that replayed a CUDA graph, and others.",
        "mode",
        (("graph", "graph_steps"), ("eager", "eager_steps")),
    ),
    (
        "adapter_evictions",
        "Adapters that gave way to others, in host memory and on the device.",
        "tier",
        (("host", "host_evictions"), ("slot", "slot_evictions")),
    ),
)


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What an engine said at one moment."""

    stats: EngineStats
    statuses: Sequence[AdapterStatus]


class EngineMetrics(Collector):
    """Samples of the last snapshot; None is an engine that is gone, of which nothing else is told."""

    def __init__(self, labels: AdapterLabels) -> None:
        self._labels = labels
        self.snapshot: EngineSnapshot | None = None

    def collect(self) -> Iterator[Metric]:
        snapshot = self.snapshot
        yield _gauge("engine_up", "Whether the engine answers.", snapshot is not None)
        if snapshot is None:
            return
        stats = snapshot.stats
        for name, documentation, field in _GAUGES:
            yield _gauge(name, documentation, getattr(stats, field))
        for name, documentation, field in _COUNTERS:
            yield CounterMetricFamily(f"tensorrt_lora_{name}", documentation, value=getattr(stats, field))
        for name, documentation, label, values in _LABELLED_COUNTERS:
            family = CounterMetricFamily(f"tensorrt_lora_{name}", documentation, labels=[label])
            for value, field in values:
                family.add_metric([value], getattr(stats, field))
            yield family
        yield from self._adapters(snapshot.statuses)

    def _adapters(self, statuses: Sequence[AdapterStatus]) -> Iterator[Metric]:
        counts = Counter((status.tier, status.state) for status in statuses)
        adapters = GaugeMetricFamily(
            "tensorrt_lora_adapters",
            "Adapters and versions known, by the fastest memory that holds them and by state.",
            labels=["tier", "state"],
        )
        for tier in get_args(AdapterTier):
            for state in get_args(AdapterState):
                adapters.add_metric([tier, state], counts[tier, state])
        yield adapters
        users: Counter[str] = Counter()
        for status in statuses:
            users[self._labels.of(status.name)] += status.users
        family = GaugeMetricFamily(
            "tensorrt_lora_adapter_users", "Requests that run or wait with an adapter.", labels=["adapter"]
        )
        for name, count in users.items():
            family.add_metric([name], count)
        yield family


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tensorrt_lora_{name}", documentation, value=value)
