"""The throughput benchmark as a picture: finished requests, and latency, against the request rate."""

from pathlib import Path

from tensorrt_lora.bench.mode_colors import MODE_COLORS
from tensorrt_lora.bench.throughput_records import ThroughputResult


def save_throughput_figure(result: ThroughputResult, path: Path) -> None:
    """Write a PNG. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=150, layout="constrained")
    throughput, latency = figure.subplots(1, 2)
    for mode in dict.fromkeys(record.mode for record in result.records):
        records = [record for record in result.records if record.mode == mode]
        rates = [f"{float(record.request_rate):g}" for record in records]
        color = MODE_COLORS[mode]
        throughput.plot(rates, [record.requests_per_s for record in records], "o-", color=color, label=mode)
        latency.plot(rates, [record.e2e_s.p50 for record in records], "o-", color=color)
        latency.plot(rates, [record.e2e_s.p99 for record in records], "o:", color=color, markersize=4)
    throughput.set(xlabel="requests per second, sent", ylabel="requests per second, finished", title="Throughput")
    latency.set(xlabel="requests per second, sent", ylabel="seconds", title="End-to-end latency: median, p99 dotted")
    for axes in (throughput, latency):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.legend(*throughput.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    options, hardware = result.header.options, result.header.hardware
    figure.suptitle(
        f"{options['preset']} on {hardware.get('name', hardware['device'])}: {options['isl']} tokens in, "
        f"{options['osl']} out, rank {options['lora_rank']}, {options['mix']} adapters"
    )
    figure.savefig(path)
