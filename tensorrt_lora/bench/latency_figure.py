"""The latency benchmark as a picture: milliseconds per token, and the LoRA tax, against concurrency."""

from collections.abc import Sequence
from pathlib import Path

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.latency_records import LatencyRecord, LatencyResult, rank_text
from tensorrt_lora.bench.mode_colors import MODE_COLORS


def save_latency_figure(result: LatencyResult, path: Path) -> None:
    """Write a PNG. Needs matplotlib."""
    from matplotlib.figure import Figure

    options = result.header.options
    figure = Figure(figsize=(11, 4.5), dpi=150, layout="constrained")
    latency, tax = figure.subplots(1, 2)
    modes = list(dict.fromkeys(record.mode for record in result.records))
    for mode in modes:
        records = [record for record in result.records if record.mode == mode]
        sizes = [str(record.concurrency) for record in records]
        color = MODE_COLORS[mode]
        latency.plot(sizes, [record.ms_per_token for record in records], "o-", color=color, label=mode)
        taxes = [record.lora_tax for record in records]
        if mode != BenchMode.BASE.value and None not in taxes:
            tax.plot(sizes, [100 * value for value in taxes if value is not None], "o-", color=color)
    for label, style, records in _floors(result.records):
        sizes = [str(record.concurrency) for record in records]
        latency.plot(sizes, [record.floor_ms for record in records], style, color="#66a182", label=label)
    latency.set(xlabel="concurrency", ylabel="ms per token", title="Decode step", ylim=(0, None))
    tax.set(xlabel="concurrency", ylabel="LoRA tax on end-to-end time, %", title="Over base")
    tax.axhline(0, color="#222222", linewidth=0.8)
    for axes in (latency, tax):
        axes.grid(alpha=0.3)
    figure.legend(*latency.get_legend_handles_labels(), loc="outside lower center", ncols=7)
    device = result.header.hardware.get("name", result.header.hardware["device"])
    figure.suptitle(
        f"{options['preset']} on {device}: {options['isl']} tokens in, {options['osl']} out, "
        f"{options['mix']} adapters of rank {rank_text(options)}"
    )
    figure.savefig(path)


def _floors(records: Sequence[LatencyRecord]) -> list[tuple[str, str, list[LatencyRecord]]]:
    """(label, line style, one record per concurrency) of the byte floors with and without adapters."""
    found = []
    for label, style, uses_adapters in (("floor, base", "--", False), ("floor, LoRA", ":", True)):
        cells = {
            record.concurrency: record for record in records if BenchMode(record.mode).uses_adapters is uses_adapters
        }
        if cells:
            found.append((label, style, list(cells.values())))
    return found
