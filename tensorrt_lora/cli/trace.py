"""`tensorrt-lora trace`: one decode step as a picture of its streams, a table of its kernels, and a Chrome trace.

Owns the options and where results are written; `tensorrt_lora/bench/` measures and draws.
"""

import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from tensorrt_lora.bench.bench_mode import TUNED, BenchPlan
from tensorrt_lora.bench.decode_trace import trace_decode_step
from tensorrt_lora.bench.layer_window import layer_window
from tensorrt_lora.bench.run_environment import commit as checkout_commit
from tensorrt_lora.bench.run_environment import hardware, versions
from tensorrt_lora.bench.trace_figure import save_trace_figure
from tensorrt_lora.bench.trace_report import kernel_table, summary_lines, write_markdown
from tensorrt_lora.bench.workload import Workload
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.lora.lora_plan import LoraPlan

DEFAULT_OUTPUT = Path("bench-results")
_OSL = 32  # tokens that the traced batch may generate; the traced step is among the first ten


def trace(
    preset: Annotated[str, typer.Option(help="Model shape and weights, such as qwen3-8b-bf16.")],
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in the step.")] = 1,
    plan: Annotated[
        Literal[
            "base",
            "sequential",
            "shrink_beside",
            "both_beside",
            "fused",
            "expand_in_consumer",
            "add_in_consumer",
            "tuned",
        ],
        typer.Option(help="How LoRA runs; tuned is what the engine chooses, base has no adapters."),
    ] = "both_beside",
    isl: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 256,
    lora_rank: Annotated[int, typer.Option(min=1, help="Rank of every adapter, on all projections.")] = 32,
    adapters: Annotated[
        int | None, typer.Option(min=1, help="Most distinct adapters in the batch; left to the mix by default.")
    ] = None,
    mix: Annotated[
        Literal["identical", "distinct", "uniform", "zipf"],
        typer.Option(help="How adapters are spread over the requests, as in bench latency."),
    ] = "identical",
    output: Annotated[Path, typer.Option(help="Directory for trace, picture and table.")] = DEFAULT_OUTPUT,
    commit: Annotated[
        str | None,
        typer.Option(help="Recorded as the code's commit; by default what git says.", show_default=False),
    ] = None,
) -> None:
    """Profile one captured decode step with dummy weights: which kernel runs where, when, and beside what."""
    workload = Workload(isl, _OSL, concurrency, mix, adapters)
    find_preset(preset)
    output.mkdir(parents=True, exist_ok=True)
    stem = f"trace-{preset}-{plan}-c{concurrency}"
    kernels, num_layers = trace_decode_step(
        preset,
        workload,
        _bench_plan(plan),
        lora_rank=lora_rank,
        path=output / f"{stem}.json",
        progress=True,
    )
    title = f"A decode step of {preset}, {plan}, concurrency {concurrency}"
    figure = None
    if importlib.util.find_spec("matplotlib") is not None:
        figure = output / f"{stem}.png"
        save_trace_figure(layer_window(kernels, num_layers), figure, title=f"{title}: one of {num_layers} layers")
    write_markdown(
        kernels,
        output / f"{stem}.md",
        title=title,
        command=shlex.join(["tensorrt-lora", *sys.argv[1:]]),
        facts=[
            f"commit: {commit or checkout_commit() or 'unknown'}",
            *(f"{name}: {value}" for name, value in {**hardware(), **versions()}.items()),
        ],
        figure=figure,
    )
    console = Console()
    console.print(kernel_table(kernels))
    for line in summary_lines(kernels):
        console.print(line, highlight=False)
    console.print(f"wrote {stem}.json, .md{', .png' if figure is not None else ''} to {output}", highlight=False)


def _bench_plan(name: str) -> BenchPlan:
    if name == TUNED:
        return TUNED
    return None if name == "base" else LoraPlan(name)
