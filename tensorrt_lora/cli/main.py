"""`tensorrt-lora`: the command line.

Owns the list of sub-commands and how a user's mistake is shown. Every sub-command has a file of its own; none
holds logic that Python users would miss.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer
from rich.console import Console
from rich.markup import escape

from tensorrt_lora.cli.adapter import check
from tensorrt_lora.cli.bench import latency
from tensorrt_lora.cli.generate import generate
from tensorrt_lora.cli.info import info
from tensorrt_lora.cli.kernels import kernels
from tensorrt_lora.cli.manifest import manifest
from tensorrt_lora.cli.prefill import prefill
from tensorrt_lora.cli.serve import serve
from tensorrt_lora.cli.serve_bench import serve as serve_bench
from tensorrt_lora.cli.startup import startup
from tensorrt_lora.cli.throughput import throughput
from tensorrt_lora.cli.trace import trace
from tensorrt_lora.cli.tune import tune

P = ParamSpec("P")


def _with_user_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Shows a ValueError, everywhere here a mistake of the user, without a traceback; exits with 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ValueError as error:
            Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            raise typer.Exit(2) from error

    return run


app = typer.Typer(
    name="tensorrt-lora",
    help="One base model, many LoRA adapters in one batch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
for _command in (serve, generate, manifest, info, trace, tune):
    app.command()(_with_user_errors(_command))

_bench = typer.Typer(name="bench", help="How fast the engine is.", no_args_is_help=True)
for _measurement in (latency, prefill, throughput, serve_bench, kernels, startup):
    _bench.command()(_with_user_errors(_measurement))
app.add_typer(_bench)

_adapter = typer.Typer(name="adapter", help="Adapters, without an engine.", no_args_is_help=True)
_adapter.command()(_with_user_errors(check))
app.add_typer(_adapter)

if __name__ == "__main__":
    app()
