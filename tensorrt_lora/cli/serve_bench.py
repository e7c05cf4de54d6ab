"""`tensorrt-lora bench serve`: what the HTTP server costs, against the engine alone.

Owns the options and where results are written; `tensorrt_lora/bench/` measures.
"""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from tensorrt_lora.bench.run_environment import commit as checkout_commit
from tensorrt_lora.bench.serve_bench import ServeBench
from tensorrt_lora.bench.serve_options import ServeOptions
from tensorrt_lora.bench.serve_records import ServeResult
from tensorrt_lora.bench.serve_report import conclusion, serve_table, write_markdown
from tensorrt_lora.cli.bench import DEFAULT_OUTPUT


def serve(
    preset: Annotated[str, typer.Option(help="Model shape and weights, such as qwen3-8b-bf16.")],
    isl: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 256,
    osl: Annotated[int, typer.Option(help="Tokens that each request generates.")] = 256,
    concurrency: Annotated[int, typer.Option(help="Streams at once; the engine's largest batch.")] = 64,
    rounds: Annotated[int, typer.Option(help="Requests of each stream, one after the other.")] = 2,
    repeats: Annotated[int, typer.Option(help="Measurements of each side, in turn.")] = 3,
    adapters: Annotated[int, typer.Option(help="Adapters; requests take the base model and these in turn.")] = 4,
    lora_rank: Annotated[int, typer.Option(help="Rank of every adapter, on all projections.")] = 32,
    clients: Annotated[int, typer.Option(help="Processes that the streams are spread over.")] = 4,
    max_num_tokens: Annotated[int, typer.Option(help="Most tokens in one step of the engine.")] = 8192,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option()] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights and prompts.")] = 0,
    output: Annotated[Path, typer.Option(help="Directory for records and summary.")] = DEFAULT_OUTPUT,
    commit: Annotated[
        str | None,
        typer.Option(help="Recorded as the code's commit; by default what git says.", show_default=False),
    ] = None,
) -> None:
    """Stream from the HTTP server, and run the same requests through the engine alone, with dummy weights."""
    options = ServeOptions(
        preset=preset,
        isl=isl,
        osl=osl,
        concurrency=concurrency,
        rounds=rounds,
        repeats=repeats,
        adapters=adapters,
        lora_rank=lora_rank,
        clients=clients,
        max_num_tokens=max_num_tokens,
        device=device,
        seed=seed,
    )
    output.mkdir(parents=True, exist_ok=True)
    stem = f"serve-{preset}-c{concurrency}"
    console = Console()

    def save(result: ServeResult) -> None:
        result.write(output / f"{stem}.jsonl")
        write_markdown(result, output / f"{stem}.md")

    command = shlex.join(["tensorrt-lora", *sys.argv[1:]])
    result = ServeBench(options, command=command, commit=commit or checkout_commit(), progress=True).run(save)
    console.print(serve_table(result))
    console.print(conclusion(result), highlight=False)
    console.print(f"wrote {stem}.jsonl, .md to {output}", highlight=False)
