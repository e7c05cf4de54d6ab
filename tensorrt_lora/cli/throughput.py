"""`tensorrt-lora bench throughput`: what the engine serves when requests arrive at given rates.

Owns the options and where results are written; `tensorrt_lora/bench/` measures.
"""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from tensorrt_lora.bench.run_environment import commit as checkout_commit
from tensorrt_lora.bench.throughput_bench import ThroughputBench
from tensorrt_lora.bench.throughput_figure import save_throughput_figure
from tensorrt_lora.bench.throughput_options import RequestRate, ThroughputOptions
from tensorrt_lora.bench.throughput_records import ThroughputResult
from tensorrt_lora.bench.throughput_report import throughput_table, write_markdown
from tensorrt_lora.cli.bench import DEFAULT_OUTPUT, can_draw, parse_modes


def throughput(
    preset: Annotated[str, typer.Option(help="Model shape and weights, such as qwen3-8b-bf16.")],
    isl: Annotated[int, typer.Option(help="Tokens of a prompt, on average.")] = 256,
    osl: Annotated[int, typer.Option(help="Tokens that a request generates, on average.")] = 256,
    length_spread: Annotated[
        float, typer.Option(help="Draw lengths evenly from the averages less and plus this share.")
    ] = 0.0,
    request_rate: Annotated[str, typer.Option(help="Requests per second, with commas; inf is all at once.")] = (
        "1,4,16,inf"
    ),
    num_requests: Annotated[int, typer.Option(help="Requests at each rate.")] = 128,
    lora_rank: Annotated[int, typer.Option(help="Rank of every adapter, on all projections.")] = 32,
    adapters: Annotated[int, typer.Option(help="Most distinct adapters; there is a slot for each.")] = 8,
    mix: Annotated[
        Literal["identical", "distinct", "uniform", "zipf"],
        typer.Option(
            help="Adapters of n requests: the same for all, one each, sqrt(n) in equal shares, or Zipf's law."
        ),
    ] = "identical",
    modes: Annotated[str, typer.Option(help="What to compare, with commas; idle too.")] = (
        "base,sequential,overlap,best"
    ),
    max_batch_size: Annotated[int, typer.Option(help="Most requests in one step of the engine.")] = 64,
    max_num_tokens: Annotated[int, typer.Option(help="Most tokens in one step of the engine.")] = 8192,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option()] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights, arrivals, lengths, prompts and draws.")] = 0,
    output: Annotated[Path, typer.Option(help="Directory for records, figure and summary.")] = DEFAULT_OUTPUT,
    commit: Annotated[
        str | None,
        typer.Option(help="Recorded as the code's commit; by default what git says.", show_default=False),
    ] = None,
) -> None:
    """Send requests at several rates, with dummy weights: base, and LoRA beside and after it."""
    options = ThroughputOptions(
        preset=preset,
        isl=isl,
        osl=osl,
        length_spread=length_spread,
        request_rate=parse_rates(request_rate),
        num_requests=num_requests,
        lora_rank=lora_rank,
        adapters=adapters,
        mix=mix,
        modes=parse_modes(modes),
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
        device=device,
        seed=seed,
    )
    output.mkdir(parents=True, exist_ok=True)
    stem = f"throughput-{preset}-{mix}"
    console = Console()
    figure = output / f"{stem}.png" if can_draw(console) else None

    def save(result: ThroughputResult) -> None:
        result.write(output / f"{stem}.jsonl")
        if figure is not None:
            save_throughput_figure(result, figure)
        write_markdown(result, output / f"{stem}.md", figure=figure)

    command = shlex.join(["tensorrt-lora", *sys.argv[1:]])
    result = ThroughputBench(options, command=command, commit=commit or checkout_commit(), progress=True).run(save)
    console.print(throughput_table(result))
    console.print(f"wrote {stem}.jsonl, .md{', .png' if figure is not None else ''} to {output}", highlight=False)


def parse_rates(text: str) -> tuple[RequestRate, ...]:
    """ "1,4.5,inf" as rates. Raises ValueError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    try:
        return tuple("inf" if part == "inf" else float(part) for part in parts)
    except ValueError as error:
        raise ValueError(f"--request-rate {text!r}: give requests per second with commas, such as 1,4,inf") from error
