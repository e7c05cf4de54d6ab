"""What the latency benchmark leaves behind: a header, then one record per concurrency and mode.

Owns the names of the fields and the JSON-lines file. Filled by `LatencyBench`, read by the table and the
figure, and by whoever compares runs.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from tensorrt_lora.bench.batch_run import BatchTimes
from tensorrt_lora.bench.bench_header import BenchHeader, write_json_lines


@dataclass(frozen=True, slots=True)
class LatencyRecord:
    """One cell: a concurrency in a mode. Times are medians over the repeats.

    Attributes:
        rank: the largest of `ranks`.
        adapters: distinct adapters of the workload; modes without adapters have the same prompts.
        e2e_s: from the submission of the batch to its last token, seconds.
        ms_per_token: of a decode step, from the batch's `ttft_ms` on.
        ttft_ms: until every request of the batch has its first token.
        tokens_per_s: generated tokens of the whole batch over `e2e_s`.
        lora_tax: `e2e_s` over base's in the same repeat, minus 1; None if base was not measured.
        floor_ms: the bytes of a decode step over the copy bandwidth.
        floor_fraction: `floor_ms` over `ms_per_token`; 1 is the floor.
        spread: least and largest `e2e_s`.
        ranks: of the distinct adapters of the workload.
        adapter_bytes: weights of these adapters, which a decode step with adapters reads once.
    """

    bench: str
    preset: str
    isl: int
    osl: int
    concurrency: int
    rank: int
    adapters: int
    mix: str
    mode: str
    e2e_s: float
    ms_per_token: float
    ttft_ms: float
    tokens_per_s: float
    lora_tax: float | None
    floor_ms: float
    floor_fraction: float
    spread: tuple[float, float]
    ranks: tuple[int, ...]
    adapter_bytes: int


@dataclass(slots=True, kw_only=True)
class LatencyHeader(BenchHeader):
    """The run, and what came out once for all cells.

    Attributes:
        copy_bandwidth: bytes per second, read and written.
        step_bytes: of weights, of one token's keys and values, of one adapter (the largest).
        best_plan: the plan that mode best ran with, by concurrency.
        trial_ms_per_token: of a decode step in the trials that chose it, by concurrency and plan.
        host_ms_per_step: host time of a decode step before the device has all its work, by concurrency and mode.
    """

    copy_bandwidth: float
    step_bytes: dict[str, int]
    best_plan: dict[int, str] = field(default_factory=dict)
    trial_ms_per_token: dict[int, dict[str, float]] = field(default_factory=dict)
    host_ms_per_step: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: BenchHeader, *, copy_bandwidth: float, step_bytes: dict[str, int]) -> "LatencyHeader":
        common = {entry.name: getattr(run, entry.name) for entry in fields(run) if entry.init}
        return cls(**common, copy_bandwidth=copy_bandwidth, step_bytes=step_bytes)


@dataclass(slots=True)
class LatencyResult:
    """A run as far as it has got."""

    header: LatencyHeader
    records: list[LatencyRecord] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """JSON lines: the header, then the records."""
        write_json_lines(path, [asdict(self.header), *(asdict(record) for record in self.records)])


def median_tax(times: Sequence[BatchTimes], base: Sequence[BatchTimes] | None) -> float | None:
    """Median over the repeats of end-to-end time over base's of the same repeat, minus 1."""
    if base is None:
        return None
    return statistics.median(ours.e2e_s / theirs.e2e_s for ours, theirs in zip(times, base, strict=True)) - 1


def rank_text(options: Mapping[str, object]) -> str:
    """The adapters' ranks in words, from a header's options."""
    ranks = options.get("lora_ranks")
    return ", ".join(map(str, ranks)) if isinstance(ranks, Sequence) else str(options["lora_rank"])
