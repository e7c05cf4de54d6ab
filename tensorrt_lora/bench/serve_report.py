"""The serving benchmark for readers: a table on the terminal, a Markdown page.

Numbers come from the records alone.
"""

from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from tensorrt_lora.bench.percentiles import Percentiles
from tensorrt_lora.bench.serve_records import ServeRecord, ServeResult

_SHORT_COLUMNS = ("", "offline", "served", "ratio", "TTFT ms", "ITL ms", "e2e s", "tok/event")
_COLUMNS = ("repeat", "offline tok/s", "served tok/s", "ratio", "TTFT ms", "ITL ms", "e2e s", "tok/event")


def serve_table(result: ServeResult) -> Table:
    """One row per repeat, in 80 columns; latencies as median and 99th percentile."""
    options = result.header.options
    title = f"{options['preset']}: {options['concurrency']} streams, {options['isl']} tokens in, {options['osl']} out"
    caption = "offline, served: tokens/s; latencies p50/p99"
    table = Table(title=title, caption=caption, box=SIMPLE, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for column in _SHORT_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for record in result.records:
        table.add_row(*_row(record))
    return table


def conclusion(result: ServeResult) -> str:
    """One sentence."""
    return f"served at {result.ratio:.1%} of the offline engine's throughput (median of {len(result.records)})"


def write_markdown(result: ServeResult, path: Path) -> None:
    """The page: how it was measured, and the table."""
    header = result.header
    options = header.options
    lines = [
        f"# Serving {options['preset']}",
        "",
        f"{options['concurrency']} streams over HTTP against `LLM.generate` with the same {options['rounds']} x "
        f"{options['concurrency']} requests: {options['isl']} tokens in, {options['osl']} out, the base model and "
        f"{options['adapters']} adapters of rank {options['lora_rank']} in turn, dummy weights, no prefix reuse. "
        "Server and offline engine have the same settings, each its own process and memory, and run in turn. Prompts "
        "are token ids; both sides turn every generated token into text, with a made-up tokenizer. "
        f"{options['clients']} client processes read the streams; their times are the latencies, as p50/p99.",
        "",
        f"    {header.command}",
        "",
        *(f"- {name}: {value}" for name, value in header.environment_facts()),
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|" + "|".join("---:" for _ in _COLUMNS) + "|",
        *("| " + " | ".join(_row(record)) + " |" for record in result.records),
        "",
        f"{conclusion(result).capitalize()}.",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _row(record: ServeRecord) -> tuple[str, ...]:
    return (
        str(record.repeat),
        f"{record.offline_tokens_per_s:.0f}",
        f"{record.served_tokens_per_s:.0f}",
        f"{record.ratio:.1%}",
        _both(record.ttft_ms, ".0f"),
        _both(record.itl_ms, ".1f"),
        _both(record.e2e_s, ".2f"),
        f"{record.tokens_per_event:.2f}",
    )


def _both(values: Percentiles, spec: str) -> str:
    return f"{values.p50:{spec}}/{values.p99:{spec}}"
