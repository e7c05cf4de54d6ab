"""`tensorrt-lora tune`: which plan is the fastest for each projection on this device.

Owns the options and the table's file; `tensorrt_lora/bench/` measures.
"""

import shlex
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from tensorrt_lora.bench.plan_bench import PlanBench
from tensorrt_lora.bench.plan_compiler import default_processes
from tensorrt_lora.bench.plan_options import PlanOptions
from tensorrt_lora.bench.plan_report import plan_report
from tensorrt_lora.bench.run_environment import commit as checkout_commit
from tensorrt_lora.bench.run_environment import versions
from tensorrt_lora.cli.bench import parse_numbers
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable, PlanTableFile, PlanTimes
from tensorrt_lora.utils.device import device_name, resolve_device


def tune(
    preset: Annotated[str, typer.Option(help="Models, with commas.")] = "qwen3-32b-fp8,qwen3-8b-bf16",
    tokens: Annotated[str, typer.Option(help="Rows of the input, with commas.")] = "1,2,4,8,16,32,64,128,256,512",
    ranks: Annotated[str, typer.Option(help="Ranks of the adapters, with commas.")] = "16,32,64,128",
    adapters: Annotated[
        int, typer.Option(help="Slots, and distinct adapters in a batch of several, if it has the rows.")
    ] = 8,
    output: Annotated[Path, typer.Option(help="The table; lora_plan_table takes it.")] = Path("plans.json"),
    extend: Annotated[bool, typer.Option(help="Keep the rows of --output that are not measured again.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="That compile kernels ahead; one for each core by default.", show_default=False),
    ] = None,
    commit: Annotated[
        str | None,
        typer.Option(help="Recorded as the code's commit; by default what git says.", show_default=False),
    ] = None,
) -> None:
    """Time every plan at every projection of some models, with random weights, and write a plan table.

    The file is written anew after each projection, so a run that is ended keeps what it has measured.
    """
    options = PlanOptions(
        presets=tuple(preset.split(",")),
        tokens=parse_numbers("--tokens", tokens),
        ranks=parse_numbers("--ranks", ranks),
        adapters=adapters,
    )
    projections = options.projections()
    device = tuned_device()
    name = device_name(device)
    rows = _rows_to_keep(output, name) if extend else []
    measured_with = {
        **versions(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit or checkout_commit() or "unknown",
        "command": shlex.join(["tensorrt-lora", *sys.argv[1:]]),
    }

    def save(more: Sequence[PlanTimes]) -> None:
        new = {(row.shape, row.kind) for row in more}
        rows[:] = [*(row for row in rows if (row.shape, row.kind) not in new), *more]
        output.parent.mkdir(parents=True, exist_ok=True)
        PlanTableFile(device=name, measured_with=measured_with, rows=rows).write(output)

    processes = default_processes() if processes is None else processes
    PlanBench(projections, options, device=device, processes=processes, progress=True).run(save)
    console = Console()
    config = LoraConfig(max_lora_rank=max(options.ranks), max_loras=options.adapters, overlap_lora_and_base=True)
    shapes = {title: projection.shape for title, projection in projections.items()}
    console.print(plan_report(LoraPlanTable.read(output), shapes, options.tokens, config))
    console.print(f"wrote {len(rows)} rows to {output}", highlight=False)


def tuned_device() -> torch.device:
    """Raises ValueError where there is nothing to tune."""
    device = resolve_device("auto")
    if device.type != "cuda":
        raise ValueError("plans are timed on a CUDA device; torch finds none here")
    return device


def _rows_to_keep(output: Path, device: str) -> list[PlanTimes]:
    if not output.exists():
        return []
    content = PlanTableFile.read(output)
    if content.device != device:
        raise ValueError(f"--output {output} is a table of {content.device}, and this is {device}: write another file")
    return content.rows
