"""`tensorrt-lora bench`: how fast the engine is, in numbers that can be repeated.

Owns the options and where results are written; `tensorrt_lora/bench/` measures.
"""

import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.latency_bench import LatencyBench
from tensorrt_lora.bench.latency_figure import save_latency_figure
from tensorrt_lora.bench.latency_options import LatencyOptions
from tensorrt_lora.bench.latency_records import LatencyResult
from tensorrt_lora.bench.latency_report import latency_table, overlap_savings, write_markdown
from tensorrt_lora.bench.run_environment import commit as checkout_commit

DEFAULT_OUTPUT = Path("bench-results")


def latency(
    preset: Annotated[str, typer.Option(help="Model shape and weights, such as qwen3-8b-bf16.")],
    isl: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 256,
    osl: Annotated[int, typer.Option(help="Tokens that each request generates.")] = 256,
    concurrency: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,8,64",
    lora_rank: Annotated[int, typer.Option(help="Rank of every adapter, on all projections.")] = 32,
    lora_ranks: Annotated[
        str | None,
        typer.Option(
            help="Ranks of the adapters in turn, with commas; all --lora-rank by default.", show_default=False
        ),
    ] = None,
    adapters: Annotated[
        int | None, typer.Option(help="Most distinct adapters in a batch; left to the mix by default.")
    ] = None,
    mix: Annotated[
        Literal["identical", "distinct", "uniform", "zipf"],
        typer.Option(
            help="Adapters of a batch of n: the same for all, one each, sqrt(n) in equal shares, or Zipf's law."
        ),
    ] = "identical",
    modes: Annotated[str, typer.Option(help="What to compare, with commas.")] = "base,idle,sequential,overlap,best",
    repeats: Annotated[int, typer.Option(help="Measured batches per concurrency and mode.")] = 3,
    max_num_tokens: Annotated[int, typer.Option(help="Most tokens in one step of the engine.")] = 8192,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option()] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights, prompts and draws.")] = 0,
    output: Annotated[Path, typer.Option(help="Directory for records, figure and summary.")] = DEFAULT_OUTPUT,
    commit: Annotated[
        str | None,
        typer.Option(help="Recorded as the code's commit; by default what git says.", show_default=False),
    ] = None,
) -> None:
    """Measure batches with dummy weights: base, and LoRA beside and after it."""
    options = LatencyOptions(
        preset=preset,
        isl=isl,
        osl=osl,
        concurrency=parse_numbers("--concurrency", concurrency),
        lora_rank=lora_rank,
        lora_ranks=None if lora_ranks is None else parse_numbers("--lora-ranks", lora_ranks),
        adapters=adapters,
        mix=mix,
        modes=parse_modes(modes),
        repeats=repeats,
        max_num_tokens=max_num_tokens,
        device=device,
        seed=seed,
    )
    output.mkdir(parents=True, exist_ok=True)
    stem = output / f"latency-{preset}-{mix}"
    console = Console()
    has_figure = can_draw(console)

    def save(result: LatencyResult) -> None:
        result.write(stem.with_name(f"{stem.name}.jsonl"))
        figure = stem.with_name(f"{stem.name}.png") if has_figure else None
        if figure is not None:
            save_latency_figure(result, figure)
        write_markdown(result, stem.with_name(f"{stem.name}.md"), figure=figure)

    command = shlex.join(["tensorrt-lora", *sys.argv[1:]])
    result = LatencyBench(options, command=command, commit=commit or checkout_commit(), progress=True).run(save)
    console.print(latency_table(result))
    for sentence in overlap_savings(result.records):
        console.print(sentence, highlight=False)
    console.print(f"wrote {stem.name}.jsonl, .md{', .png' if has_figure else ''} to {output}", highlight=False)


def can_draw(console: Console) -> bool:
    """Whether there is matplotlib; says so where there is none."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    console.print("no figure will be drawn: pip install 'tensorrt_lora[bench]' for matplotlib", markup=False)
    return False


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """ "1,8,64" as numbers. Raises ValueError for anything else, naming the option."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"{option} {text!r}: give numbers with commas, such as 1,8,64") from error


def parse_modes(text: str) -> tuple[BenchMode, ...]:
    """ "base,overlap" as modes. Raises ValueError for an unknown one."""
    known = {mode.value: mode for mode in BenchMode}
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"--modes names the unknown mode {name!r}: use some of {', '.join(known)}")
    return tuple(known[name] for name in names)
