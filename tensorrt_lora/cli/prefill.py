"""`tensorrt-lora bench prefill`: the time of one step of prompt tokens, and what LoRA adds to it.

Owns the options and where results are written; `tensorrt_lora/bench/` measures.
"""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from tensorrt_lora.bench.prefill_bench import PrefillBench
from tensorrt_lora.bench.prefill_options import PrefillOptions
from tensorrt_lora.bench.prefill_records import PrefillResult
from tensorrt_lora.bench.prefill_report import prefill_table, write_markdown
from tensorrt_lora.bench.run_environment import commit as checkout_commit
from tensorrt_lora.cli.bench import DEFAULT_OUTPUT, parse_modes, parse_numbers


def prefill(
    preset: Annotated[str, typer.Option(help="Model shape and weights, such as qwen3-8b-bf16.")],
    tokens: Annotated[str, typer.Option(help="Tokens of the step over all prompts, with commas.")] = "8192",
    prompts: Annotated[int, typer.Option(help="Prompts of the step, of equal lengths.")] = 1,
    lora_rank: Annotated[int, typer.Option(help="Rank of every adapter, on all projections.")] = 32,
    adapters: Annotated[
        int | None, typer.Option(help="Most distinct adapters in the step; left to the mix by default.")
    ] = None,
    mix: Annotated[
        Literal["identical", "distinct", "uniform", "zipf"],
        typer.Option(help="Adapters of n prompts: the same for all, one each, sqrt(n) in equal shares, or Zipf's law."),
    ] = "identical",
    modes: Annotated[str, typer.Option(help="What to compare, with commas; overlap and best too.")] = (
        "base,idle,sequential"
    ),
    repeats: Annotated[int, typer.Option(help="Measured steps per number of tokens and mode.")] = 10,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option()] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights, prompts and draws.")] = 0,
    output: Annotated[Path, typer.Option(help="Directory for records and summary.")] = DEFAULT_OUTPUT,
    commit: Annotated[
        str | None,
        typer.Option(help="Recorded as the code's commit; by default what git says.", show_default=False),
    ] = None,
) -> None:
    """Measure single prefill steps with dummy weights: base, and LoRA."""
    options = PrefillOptions(
        preset=preset,
        tokens=parse_numbers("--tokens", tokens),
        prompts=prompts,
        lora_rank=lora_rank,
        adapters=adapters,
        mix=mix,
        modes=parse_modes(modes),
        repeats=repeats,
        device=device,
        seed=seed,
    )
    output.mkdir(parents=True, exist_ok=True)
    stem = f"prefill-{preset}-{mix}"

    def save(result: PrefillResult) -> None:
        result.write(output / f"{stem}.jsonl")
        write_markdown(result, output / f"{stem}.md")

    command = shlex.join(["tensorrt-lora", *sys.argv[1:]])
    result = PrefillBench(options, command=command, commit=commit or checkout_commit(), progress=True).run(save)
    console = Console()
    console.print(prefill_table(result))
    console.print(f"wrote {stem}.jsonl, .md to {output}", highlight=False)
