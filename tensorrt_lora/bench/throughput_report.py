"""The throughput benchmark for readers: a table on the terminal, a Markdown page.

Numbers come from the records alone.
"""

from collections.abc import Mapping
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from tensorrt_lora.bench.percentiles import Percentiles
from tensorrt_lora.bench.throughput_records import ThroughputRecord, ThroughputResult

_SHORT_COLUMNS = ("rate", "mode", "req/s", "tok/s", "TTFT ms", "ITL ms", "e2e s", "tax", "e2e tax")
_COLUMNS = (
    *("rate", "achieved", "mode", "plan", "req/s", "tok/s", "concurrency"),
    *("TTFT ms", "ITL ms", "e2e s", "tax", "e2e tax"),
)
_TEXT_COLUMNS = ("mode", "plan")


def throughput_table(result: ThroughputResult) -> Table:
    """One row per record, in 80 columns; latencies as median and 99th percentile."""
    title = f"{_subject(result.header.options)}; latencies p50/p99"
    table = Table(title=title, box=SIMPLE, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for column in _SHORT_COLUMNS:
        table.add_column(column, justify="left" if column in _TEXT_COLUMNS else "right", no_wrap=True)
    previous = None
    for record in result.records:
        if previous is not None and record.request_rate != previous:
            table.add_section()
        table.add_row(
            f"{float(record.request_rate):g}",
            record.mode,
            f"{record.requests_per_s:.2f}",
            f"{record.tokens_per_s:.0f}",
            f"{record.ttft_ms.p50:.0f}/{record.ttft_ms.p99:.0f}",
            f"{record.itl_ms.p50:.1f}/{record.itl_ms.p99:.1f}",
            f"{record.e2e_s.p50:.2f}/{record.e2e_s.p99:.2f}",
            _percent(record.throughput_tax),
            _percent(record.e2e_tax),
        )
        previous = record.request_rate
    return table


def write_markdown(result: ThroughputResult, path: Path, *, figure: Path | None) -> None:
    """The page: how it was measured, and the table; `figure` lies beside it."""
    header = result.header
    options = header.options
    lines = [
        f"# Throughput of {options['preset']}",
        "",
        f"{options['num_requests']} requests at each rate, {_subject(options).split(': ')[1]}, adapters of rank "
        f"{options['lora_rank']} on all projections ({options['mix']}), dummy weights, no prefix reuse, the engine's "
        f"loop in the measuring process. Requests arrive by a Poisson process of so many a second, or all at once "
        f"(inf); every mode gets the same ones at the same times. Latencies count from the arrival and are given as "
        f"mean / p50 / p90 / p99.",
        "",
        f"    {header.command}",
        "",
        *(f"- {name}: {value}" for name, value in (*header.environment_facts(), *header.start_up_facts())),
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|" + "|".join("---" if column in _TEXT_COLUMNS else "---:" for column in _COLUMNS) + "|",
        *("| " + " | ".join(_row(record)) + " |" for record in result.records),
    ]
    if figure is not None:
        lines += ["", f"![throughput and latency against the request rate]({figure.name})"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _subject(options: Mapping[str, object]) -> str:
    spread = float(str(options["length_spread"]))
    lengths = f"{options['isl']} tokens in, {options['osl']} out"
    return f"{options['preset']}: {lengths}{f' (+-{spread:.0%})' if spread else ''}"


def _row(record: ThroughputRecord) -> tuple[str, ...]:
    return (
        f"{float(record.request_rate):g}",
        "" if record.achieved_rate is None else f"{record.achieved_rate:.2f}",
        record.mode,
        record.plan,
        f"{record.requests_per_s:.3f}",
        f"{record.tokens_per_s:.0f}",
        f"{record.mean_concurrency:.1f}",
        _all(record.ttft_ms, ".1f"),
        _all(record.itl_ms, ".2f"),
        _all(record.e2e_s, ".3f"),
        _percent(record.throughput_tax),
        _percent(record.e2e_tax),
    )


def _all(values: Percentiles, spec: str) -> str:
    return " / ".join(format(value, spec) for value in (values.mean, values.p50, values.p90, values.p99))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"
