"""The prefill benchmark for readers: a table on the terminal, a Markdown page. Numbers come from the records alone."""

from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from tensorrt_lora.bench.prefill_records import PrefillRecord, PrefillResult

_COLUMNS = ("tokens", "mode", "ms", "least to largest", "tok/s", "TFLOP/s", "tax", "host ms")


def prefill_table(result: PrefillResult) -> Table:
    """One row per record, in 80 columns."""
    options = result.header.options
    title = f"{options['preset']}: one step, prompts: {options['prompts']}"
    table = Table(title=title, box=SIMPLE, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "mode" else "right", no_wrap=True)
    previous = None
    for record in result.records:
        if previous is not None and record.tokens != previous:
            table.add_section()
        table.add_row(*_row(record))
        previous = record.tokens
    return table


def write_markdown(result: PrefillResult, path: Path) -> None:
    """The page: how it was measured, and the table."""
    header = result.header
    options = header.options
    lines = [
        f"# Prefill of {options['preset']}",
        "",
        f"One step over all tokens of {options['prompts']} prompt(s), adapters of rank {options['lora_rank']} on all "
        f"projections ({options['mix']}), dummy weights, empty cache, until the host has the sampled tokens; "
        f"medians of {options['repeats']} steps, modes in turn. TFLOP/s count the model without LoRA.",
        "",
        f"    {header.command}",
        "",
        *(f"- {name}: {value}" for name, value in (*header.environment_facts(), *header.start_up_facts())),
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|" + "|".join("---" if column == "mode" else "---:" for column in _COLUMNS) + "|",
        *("| " + " | ".join(_row(record)) + " |" for record in result.records),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _row(record: PrefillRecord) -> tuple[str, ...]:
    least, largest = record.spread
    return (
        str(record.tokens),
        record.mode,
        f"{record.ms:.2f}",
        f"{least:.2f} to {largest:.2f}",
        f"{record.tokens_per_s:.0f}",
        f"{record.tflops:.1f}",
        "" if record.lora_tax is None else f"{record.lora_tax:+.1%}",
        f"{record.host_ms:.2f}",
    )
