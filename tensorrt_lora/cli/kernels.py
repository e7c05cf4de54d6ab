"""`tensorrt-lora bench kernels`: base projections one by one, in every way to compute them."""

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from tensorrt_lora.bench.bandwidth import measure_copy_bandwidth
from tensorrt_lora.bench.linear_bench import LinearBench, LinearTiming
from tensorrt_lora.bench.linear_case import Stored
from tensorrt_lora.bench.run_environment import commit, hardware, versions
from tensorrt_lora.utils.device import resolve_device

PRESETS = "qwen3-32b-fp8,qwen3-8b-fp8"


def kernels(
    preset: Annotated[str, typer.Option(help="Model shapes, with commas.")] = PRESETS,
    tokens: Annotated[str, typer.Option(help="Rows of the input, with commas.")] = "1,8,64",
    stored: Annotated[
        str, typer.Option(help="How weights are: bf16, rows and blocks, with commas.")
    ] = "bf16,rows,blocks",
    sweep: Annotated[bool, typer.Option(help="Try many configurations of our kernel.")] = True,
    output: Annotated[Path | None, typer.Option(help="JSON lines are written here.")] = None,
) -> None:
    """Time the base projections of a layer: by cuBLAS and by our kernel, weights rotated past the cache."""
    device = resolve_device("auto")
    rows = [int(part) for part in tokens.split(",")]
    formats = parse_stored(stored)
    bench = LinearBench(preset.split(","), rows, formats, device=device, sweep=sweep)
    console = Console(highlight=False, soft_wrap=True)
    bandwidth = measure_copy_bandwidth(device)
    console.print(f"copies within the device: {bandwidth / 1e12:.2f} TB/s")
    timings: list[LinearTiming] = []

    def report(timing: LinearTiming) -> None:
        timings.append(timing)
        console.print(_describe(timing), markup=False)

    bench.run(report)
    for line in _totals(timings):
        console.print(line, markup=False)
    if output is not None:
        header = {"bench": "kernels", **hardware(), **versions(), "commit": commit(), "copy_bandwidth": bandwidth}
        lines = [json.dumps(header), *(json.dumps(asdict(timing)) for timing in timings)]
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parse_stored(text: str) -> list[Stored]:
    """ "bf16,rows" as formats. Raises ValueError for an unknown one."""
    known = get_args(Stored)
    names = text.split(",")
    for name in names:
        if name not in known:
            raise ValueError(f"--stored names the unknown format {name!r}: use some of {', '.join(known)}")
    return [stored for stored in known if stored in names]


def _describe(timing: LinearTiming) -> str:
    start = f"{timing.preset} {timing.shape:8} M={timing.tokens:<4} {timing.candidate:29}"
    if timing.problem:
        return f"{start} {timing.problem}"
    speed = f"{timing.seconds * 1e6:8.1f} us {timing.bytes_per_second / 1e12:6.2f} TB/s  error {timing.error:.4f}"
    return f"{start} {speed}  {timing.config or ''}"


def _totals(timings: list[LinearTiming]) -> list[str]:
    """The four projections of a layer together, by model, tokens and candidate."""
    layers: dict[tuple[str, int, str], list[LinearTiming]] = defaultdict(list)
    for timing in timings:
        layers[timing.preset, timing.tokens, timing.candidate].append(timing)
    lines = ["one layer:"]
    for (preset, tokens, candidate), parts in layers.items():
        if any(part.problem for part in parts):
            continue
        seconds = sum(part.seconds for part in parts)
        speed = sum(part.seconds * part.bytes_per_second for part in parts) / seconds
        lines.append(f"{preset} M={tokens:<4} {candidate:29} {seconds * 1e6:8.1f} us {speed / 1e12:6.2f} TB/s")
    return lines
