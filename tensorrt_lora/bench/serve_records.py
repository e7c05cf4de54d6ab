"""What the serving benchmark leaves behind: a header, then one record per repeat.

Owns the names of the fields and how they follow from the times of requests. Filled by `ServeBench`, read by the report
and by whoever compares runs.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from tensorrt_lora.bench.bench_header import RunHeader, write_json_lines
from tensorrt_lora.bench.percentiles import Percentiles
from tensorrt_lora.bench.stream_clients import StreamedRequest


@dataclass(frozen=True, slots=True)
class ServeRecord:
    """The same requests through the server and through `LLM.generate`, one after the other.

    Attributes:
        repeat: counted from 0.
        tokens: generated, on each side.
        offline_s, served_s: from the first request to the last token, seconds.
        ratio: served over offline throughput.
        ttft_ms, itl_ms, e2e_s: of the streams, as the clients saw them; `itl_ms` between two events of a stream, which
            hold more than one token where the client was late.
        tokens_per_event: 1 where every token came by itself.
    """

    bench: str
    preset: str
    isl: int
    osl: int
    concurrency: int
    num_requests: int
    adapters: int
    rank: int
    repeat: int
    tokens: int
    offline_s: float
    served_s: float
    offline_tokens_per_s: float
    served_tokens_per_s: float
    ratio: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    e2e_s: Percentiles
    tokens_per_event: float


@dataclass(frozen=True, slots=True)
class ServedTimes:
    """A finished measurement of the server in numbers; see `ServeRecord`."""

    served_s: float
    tokens: int
    ttft_ms: Percentiles
    itl_ms: Percentiles
    e2e_s: Percentiles
    tokens_per_event: float

    @classmethod
    def of(cls, requests: Sequence[StreamedRequest]) -> "ServedTimes":
        tokens = sum(request.num_tokens for request in requests)
        gaps = [(after - before) * 1e3 for request in requests for before, after in pairwise(request.events)]
        return cls(
            served_s=max(request.done for request in requests) - min(request.sent for request in requests),
            tokens=tokens,
            ttft_ms=Percentiles.of([(request.events[0] - request.sent) * 1e3 for request in requests]),
            itl_ms=Percentiles.of(gaps or [0.0]),
            e2e_s=Percentiles.of([request.done - request.sent for request in requests]),
            tokens_per_event=tokens / sum(len(request.events) for request in requests),
        )


@dataclass(slots=True)
class ServeResult:
    """A run as far as it has got."""

    header: RunHeader
    records: list[ServeRecord] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Median over the repeats."""
        return statistics.median(record.ratio for record in self.records)

    def write(self, path: Path) -> None:
        """JSON lines: the header, then the records."""
        write_json_lines(path, [asdict(self.header), *(asdict(record) for record in self.records)])
