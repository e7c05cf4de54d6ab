"""Counters and histograms of requests that generate.

Fed by the routes as a `RequestObserver`, in the event loop; read by `ServerMetrics`. Times are those that the server
sees: an engine does not tell how long a request waited inside it, so that wait is part of the time to first token.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tensorrt_lora.serve.adapter_labels import UNKNOWN, AdapterLabels
from tensorrt_lora.serve.request_record import RequestRecord

_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class RequestMetrics:
    """A `RequestObserver` that counts. All metrics are labelled by adapter."""

    def __init__(self, registry: CollectorRegistry, labels: AdapterLabels) -> None:
        self._labels = labels
        self._open = Gauge(
            "tensorrt_lora_generation_requests_open", "Requests that generate and have not ended.", registry=registry
        )
        self._requests = Counter(
            "tensorrt_lora_generation_requests",
            "Requests that have ended, by endpoint and outcome: ok, abort (the client went away), timeout, refused, "
            "error.",
            ["endpoint", "outcome", "adapter"],
            registry=registry,
        )

        def counter(name: str, documentation: str) -> Counter:
            return Counter(f"tensorrt_lora_{name}", documentation, ["adapter"], registry=registry)

        def histogram(name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"tensorrt_lora_{name}", documentation, ["adapter"], buckets=buckets, registry=registry)

        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts that the engine was given.")
        self._cached_tokens = counter("cached_prompt_tokens", "Those of them that the prefix cache held.")
        self._generated_tokens = counter("generated_tokens", "Tokens generated, over all choices.")
        self._preparation = histogram(
            "request_preparation_seconds",
            "From a request's arrival until the engine has it: its adapter's load by name, and tokenization.",
            _REQUEST_SECONDS,
        )
        self._first_token = histogram(
            "time_to_first_token_seconds", "From a stream's arrival to its first token.", _REQUEST_SECONDS
        )
        self._inter_token = histogram(
            "inter_token_seconds", "Between a stream's tokens, as the server sends them.", _TOKEN_SECONDS
        )
        self._seconds = histogram(
            "request_seconds", "From arrival to the last token, of all that ended.", _REQUEST_SECONDS
        )

    def on_start(self, record: RequestRecord) -> None:
        self._open.inc()

    def on_tokens(self, record: RequestRecord, num_new: int, seconds: float | None) -> None:
        label = self.label(record)
        self._generated_tokens.labels(label).inc(num_new)
        if not record.streams:
            return  # its tokens are seen at the end, all at once
        if seconds is not None:
            self._inter_token.labels(label).observe(seconds)
        elif record.first_token_at is not None:
            self._first_token.labels(label).observe(record.first_token_at - record.received_at)

    def on_finish(self, record: RequestRecord) -> None:
        self._open.dec()
        label = self.label(record)
        self._requests.labels(record.endpoint, record.outcome, label).inc()
        if record.submitted_at is None:
            return
        self._prompt_tokens.labels(label).inc(record.prompt_tokens)
        self._cached_tokens.labels(label).inc(record.cached_tokens)
        self._preparation.labels(label).observe(record.submitted_at - record.received_at)
        if record.finished_at is not None:
            self._seconds.labels(label).observe(record.finished_at - record.received_at)

    def label(self, record: RequestRecord | None) -> str:
        """The request's adapter, as metrics call it."""
        if record is None or (record.adapter is None and record.submitted_at is None):
            return UNKNOWN
        return self._labels.of(record.adapter)
