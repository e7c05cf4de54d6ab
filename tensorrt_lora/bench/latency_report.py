"""The latency benchmark for readers: a table on the terminal, a Markdown page. Numbers come from the records alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.latency_records import LatencyHeader, LatencyRecord, LatencyResult, rank_text

# Heading, and whether the terminal's table has it too.
_COLUMNS: dict[str, bool] = {
    "conc": True,
    "mode": True,
    "e2e s": True,
    "least to largest": False,
    "ms/tok": True,
    "TTFT ms": True,
    "tok/s": True,
    "LoRA tax": True,
    "floor ms": False,
    "of floor": True,
    "host ms": True,
}


def latency_table(result: LatencyResult) -> Table:
    """One row per record, in 80 columns."""
    options = result.header.options
    title = f"{options['preset']}: {options['isl']} tokens in, {options['osl']} out"
    table = Table(title=title, box=SIMPLE, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for column, is_short in _COLUMNS.items():
        if is_short:
            table.add_column(column, justify="left" if column == "mode" else "right", no_wrap=True)
    previous = None
    for record in result.records:
        if previous is not None and record.concurrency != previous:
            table.add_section()
        row = _row(record, result.header)
        table.add_row(*(cell for cell, is_short in zip(row, _COLUMNS.values(), strict=True) if is_short))
        previous = record.concurrency
    return table


def overlap_savings(records: Sequence[LatencyRecord]) -> Iterator[str]:
    """One sentence per concurrency that has both LoRA modes: what running LoRA beside the base saves."""
    cells = {(record.concurrency, record.mode): record for record in records}
    for concurrency in dict.fromkeys(record.concurrency for record in records):
        sequential = cells.get((concurrency, BenchMode.SEQUENTIAL.value))
        overlap = cells.get((concurrency, BenchMode.OVERLAP.value))
        if sequential is not None and overlap is not None:
            seconds = sequential.e2e_s - overlap.e2e_s
            step = sequential.ms_per_token - overlap.ms_per_token
            yield (
                f"Concurrency {concurrency}: overlap saves {seconds:.3f} s of {sequential.e2e_s:.3f} s "
                f"({seconds / sequential.e2e_s:.1%}), {step:.3f} ms per token."
            )


def write_markdown(result: LatencyResult, path: Path, *, figure: Path | None) -> None:
    """The page: how it was measured, the table, what overlap saves; `figure` lies beside it."""
    header = result.header
    options = header.options
    lines = [
        f"# Latency of {options['preset']}",
        "",
        f"{options['isl']} tokens in, {options['osl']} out, adapters of rank {rank_text(options)} on all "
        f"projections ({options['mix']}), dummy weights, no prefix reuse, the engine's loop in the measuring process; "
        f"medians of {options['repeats']} batches, modes in turn.",
        "",
        f"    {header.command}",
        "",
        *(f"- {name}: {value}" for name, value in _facts(header)),
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|" + "|".join("---" if column == "mode" else "---:" for column in _COLUMNS) + "|",
        *("| " + " | ".join(_row(record, header)) + " |" for record in result.records),
        "",
        *(f"{sentence}  " for sentence in overlap_savings(result.records)),
    ]
    if figure is not None:
        lines += ["", f"![latency and LoRA tax against concurrency]({figure.name})"]
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _row(record: LatencyRecord, header: LatencyHeader) -> tuple[str, ...]:
    least, largest = record.spread
    host = header.host_ms_per_step[record.concurrency][record.mode]
    return (
        str(record.concurrency),
        record.mode,
        f"{record.e2e_s:.3f}",
        f"{least:.3f} to {largest:.3f}",
        f"{record.ms_per_token:.3f}",
        f"{record.ttft_ms:.1f}",
        f"{record.tokens_per_s:.0f}",
        "" if record.lora_tax is None else f"{record.lora_tax:+.1%}",
        f"{record.floor_ms:.3f}",
        f"{record.floor_fraction:.0%}",
        f"{host:.2f}",
    )


def _facts(header: LatencyHeader) -> Iterator[tuple[str, str]]:
    yield from header.environment_facts()
    yield "copy bandwidth", f"{header.copy_bandwidth / 1e12:.3f} TB/s, bytes read and written"
    sizes = header.step_bytes
    yield (
        "bytes of a decode step",
        f"weights {sizes['weights'] / 1e9:.3f} GB, each cached token {sizes['kv_per_token'] / 1e3:.1f} kB, "
        f"{'each' if header.options.get('lora_ranks') is None else 'the largest'} adapter "
        f"{sizes['adapter'] / 1e6:.1f} MB",
    )
    yield from header.start_up_facts()
    if header.best_plan:
        plans = ", ".join(f"{plan} at {concurrency}" for concurrency, plan in header.best_plan.items())
        yield "plan of mode best", plans
    for concurrency, trials in header.trial_ms_per_token.items():
        times = ", ".join(f"{plan} {milliseconds:.2f}" for plan, milliseconds in trials.items())
        yield f"trials at {concurrency}, ms per token", times
