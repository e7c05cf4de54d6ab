"""All metrics of one server, in a registry of their own.

Owns what /metrics shows. Made by whoever starts a server, given to `create_app`. The engine is asked in a thread, and
by one scrape at a time.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest

from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.serve.adapter_labels import AdapterLabels
from tensorrt_lora.serve.admission_gate import AdmissionGate
from tensorrt_lora.serve.engine_metrics import EngineMetrics, EngineSnapshot
from tensorrt_lora.serve.request_metrics import RequestMetrics
from tensorrt_lora.serve.request_record import RequestRecord
from tensorrt_lora.serve.serve_config import ServeConfig


class MeasuredEngine(Protocol):
    """What metrics need of `LLM`."""

    def stats(self) -> EngineStats: ...

    def list_loras(self) -> Sequence[AdapterStatus]: ...


class ServerMetrics:
    """`requests` is the observer of the routes, `count_response` that of all answers; `render` shows everything."""

    def __init__(self, config: ServeConfig) -> None:
        self._registry = CollectorRegistry()
        labels = AdapterLabels(config.loras, limit=config.max_metric_adapters)
        self.requests = RequestMetrics(self._registry, labels)
        self._responses = Counter(
            "tensorrt_lora_http_requests",
            "Answers by route, status and adapter; 499 where the client went away before.",
            ["route", "status", "adapter"],
            registry=self._registry,
        )
        self._admitted = Gauge(
            "tensorrt_lora_sequences_admitted",
            "Sequences that were let in and have not ended.",
            registry=self._registry,
        )
        self._limit = Gauge("tensorrt_lora_sequences_limit", "How many are let in at once.", registry=self._registry)
        self._engine = EngineMetrics(labels)
        self._registry.register(self._engine)
        self._asking = asyncio.Lock()

    def count_response(self, route: str, status: int, record: RequestRecord | None) -> None:
        """One answer more; `record` is that of a request that generates."""
        self._responses.labels(route, str(status), self.requests.label(record)).inc()

    async def render(self, engine: MeasuredEngine, gate: AdmissionGate) -> Response:
        """Everything as of now, in Prometheus' text format."""
        async with self._asking:
            try:
                self._engine.snapshot = await asyncio.to_thread(
                    lambda: EngineSnapshot(engine.stats(), engine.list_loras())
                )
            except EngineDeadError:
                self._engine.snapshot = None
            self._admitted.set(gate.num_running)
            self._limit.set(gate.max_sequences)
            return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)
