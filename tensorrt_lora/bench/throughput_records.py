"""What the throughput benchmark leaves behind: a header, then one record per request rate and mode.

Owns the names of the fields and how they follow from the times of requests. Filled by `ThroughputBench`, read by the
table and the figure, and by whoever compares runs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tensorrt_lora.bench.bench_header import BenchHeader, write_json_lines
from tensorrt_lora.bench.percentiles import Percentiles
from tensorrt_lora.bench.throughput_options import RequestRate
from tensorrt_lora.bench.throughput_run import RequestTimes


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """A finished stream in numbers.

    Attributes:
        duration_s: from the first arrival to the last token, seconds.
        achieved_rate: requests per second as they were submitted; None where all came at once.
        requests_per_s: finished requests over `duration_s`.
        tokens_per_s: generated tokens over `duration_s`.
        mean_concurrency: requests in the engine or waiting for it, on average over `duration_s`.
        ttft_ms: from a request's arrival to its first token.
        itl_ms: between two tokens of a request, over all tokens of all requests.
        e2e_s: from a request's arrival to its last token.
    """

    duration_s: float
    achieved_rate: float | None
    requests_per_s: float
    tokens_per_s: float
    mean_concurrency: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    e2e_s: Percentiles

    @classmethod
    def of(cls, requests: Sequence[RequestTimes]) -> "StreamTimes":
        duration = max(request.tokens[-1] for request in requests) - requests[0].due
        sending = requests[-1].submitted - requests[0].submitted
        return cls(
            duration_s=duration,
            achieved_rate=(len(requests) - 1) / sending if sending > 0 else None,
            requests_per_s=len(requests) / duration,
            tokens_per_s=sum(len(request.tokens) for request in requests) / duration,
            mean_concurrency=sum(request.e2e_s for request in requests) / duration,
            ttft_ms=Percentiles.of([request.ttft_s * 1e3 for request in requests]),
            itl_ms=Percentiles.of([gap * 1e3 for request in requests for gap in request.gaps]),
            e2e_s=Percentiles.of([request.e2e_s for request in requests]),
        )


@dataclass(frozen=True, slots=True)
class ThroughputRecord:
    """One cell: a request rate in a mode. The rest of the fields is that of `StreamTimes`.

    Attributes:
        isl, osl: average lengths; drawn from them less and plus `length_spread`, as a share.
        request_rate: requests per second of the Poisson process; "inf" is all at once.
        rank: of every adapter.
        adapters: distinct adapters of the stream; modes without adapters have the same prompts.
        plan: how LoRA ran.
        throughput_tax: base's `requests_per_s` over this one's, minus 1; None if base was not measured.
        e2e_tax: median of `e2e_s` over base's, minus 1; None if base was not measured.
    """

    bench: str
    preset: str
    isl: int
    osl: int
    length_spread: float
    request_rate: RequestRate
    num_requests: int
    rank: int
    adapters: int
    mix: str
    mode: str
    plan: str
    duration_s: float
    achieved_rate: float | None
    requests_per_s: float
    tokens_per_s: float
    mean_concurrency: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    e2e_s: Percentiles
    throughput_tax: float | None
    e2e_tax: float | None


@dataclass(slots=True)
class ThroughputResult:
    """A run as far as it has got."""

    header: BenchHeader
    records: list[ThroughputRecord] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """JSON lines: the header, then the records."""
        write_json_lines(path, [asdict(self.header), *(asdict(record) for record in self.records)])
