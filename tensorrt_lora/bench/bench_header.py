"""The first record of every benchmark of the engine: where, with what, and what start-up took.

Filled by the benchmarks, written before their cells' records, and quoted by their reports. Knows no measurement.
"""

import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensorrt_lora.bench.bench_engine import BenchEngine
from tensorrt_lora.bench.bench_mode import plan_name
from tensorrt_lora.bench.run_environment import hardware, versions
from tensorrt_lora.config.strict_base_model import StrictBaseModel


@dataclass(slots=True, kw_only=True)
class RunHeader:
    """The run.

    Attributes:
        bench: name of the benchmark.
        command: as it was typed.
        commit: of the code; None if unknown.
        options: of the benchmark, by name.
    """

    record: str = field(default="header", init=False)
    bench: str
    command: str
    commit: str | None
    started: str  # ISO 8601, UTC
    hardware: dict[str, str]
    versions: dict[str, str]
    options: dict[str, object]

    def environment_facts(self) -> Iterator[tuple[str, str]]:
        """Name and text of what a reader compares runs by."""
        yield "commit", self.commit or "unknown"
        yield "started", self.started
        yield "hardware", ", ".join(f"{name} {value}" for name, value in self.hardware.items())
        yield "versions", ", ".join(f"{name} {value}" for name, value in self.versions.items())


@dataclass(slots=True, kw_only=True)
class BenchHeader(RunHeader):
    """A run of an engine in the measuring process.

    Attributes:
        load_seconds: start-up without the capture of graphs.
        graph_memory: bytes that each captured graph took, by batch size (for a prefill: tokens) and plan.
    """

    load_seconds: float
    capture_seconds: float
    graph_memory: dict[str, int]

    def start_up_facts(self) -> Iterator[tuple[str, str]]:
        """Name and text of what happened before the first measurement."""
        yield "load", f"{self.load_seconds:.1f} s"
        yield (
            "CUDA graphs",
            f"{len(self.graph_memory)}, {sum(self.graph_memory.values()) / 2**20:.0f} MiB, captured in "
            f"{self.capture_seconds:.1f} s",
        )


def describe_run(
    bench: str,
    options: StrictBaseModel,
    engine: BenchEngine,
    *,
    command: str,
    commit: str | None,
    start_up_seconds: float,
) -> BenchHeader:
    """The header of a run that starts now."""
    graphs = engine.engine.graph_runner
    return BenchHeader(
        bench=bench,
        command=command,
        commit=commit,
        started=now(),
        hardware=hardware(),
        versions=versions(),
        options=options.model_dump(mode="json"),
        load_seconds=start_up_seconds - graphs.capture_seconds,
        capture_seconds=graphs.capture_seconds,
        graph_memory={
            f"{'prefill ' if key.is_prefill else ''}{key.batch_size} {key.plan or plan_name(None)}": memory
            for key, memory in graphs.graph_memory.items()
        },
    )


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def write_json_lines(path: Path, entries: Sequence[dict[str, object]]) -> None:
    """One line per entry, the header first."""
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
