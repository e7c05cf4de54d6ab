"""`tensorrt-lora bench startup`: until an engine with default settings takes requests."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from tensorrt_lora.bench.run_environment import commit, hardware, versions
from tensorrt_lora.bench.start_up_bench import measure_start_up


def startup(
    preset: Annotated[str, typer.Option(help="Model shape and weights, such as qwen3-32b-fp8.")],
    lora_rank: Annotated[int, typer.Option(help="max_lora_rank.")] = 32,
    max_loras: Annotated[int, typer.Option(help="Slots.")] = 8,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option()] = "auto",
    output: Annotated[Path | None, typer.Option(help="JSON lines are written here.")] = None,
) -> None:
    """Start one engine with dummy weights and the default graph sizes. A second run has the kernels on disk."""
    result = measure_start_up(preset, lora_rank=lora_rank, max_loras=max_loras, device=device, progress=True)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{preset}: weights, slots, KV cache {result.load_seconds:.1f} s; then {result.engine_seconds:.1f} s")
    console.print(
        f"{result.num_graphs} graphs, {result.graph_bytes / 2**20:.0f} MiB; "
        f"{max_loras} slots of rank {lora_rank}, {result.slot_bytes / 2**20:.0f} MiB"
    )
    if output is not None:
        header = {"bench": "startup", **hardware(), **versions(), "commit": commit()}
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(f"{json.dumps(header)}\n{json.dumps(asdict(result))}\n", encoding="utf-8")
