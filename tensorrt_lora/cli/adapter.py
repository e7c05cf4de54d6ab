"""`tensorrt-lora adapter check`: can this adapter be served on that model, and if not, why.

Owns the options and how a report is shown; the verdict is `AdapterChecker`'s.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensorrt_lora.adapters.adapter_report import AdapterReport, ModuleReport
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.validation_message import describe_validation_error
from tensorrt_lora.engine.adapter_checker import AdapterChecker
from tensorrt_lora.lora.module_types import DEFAULT_TARGETS, LoraModuleType
from tensorrt_lora.lora_request import LoRARequest


def check(
    adapter: Annotated[str, typer.Argument(metavar="DIR", help="The adapter's directory, or a hub id.")],
    model: Annotated[str, typer.Option(help="Checkpoint directory, .gguf file or hub id. Its weights are not read.")],
    max_lora_rank: Annotated[int, typer.Option(min=1, help="The engine's limit on ranks.")] = 64,
    target: Annotated[
        list[str] | None,
        typer.Option(help="A name in lora_target_modules. Repeatable. Left out: all that the model has."),
    ] = None,
    ckpt_source: Annotated[Literal["hf", "nemo"], typer.Option(help="The adapter's format.")] = "hf",
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="The engine's dtype.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check an adapter without a GPU: exit code 0 if it can be served on the model, 1 if it cannot.

    Copies of the model's weights in the adapter's file are not compared with the model's: the verdict names them.
    """
    if not adapter:
        raise ValueError("DIR is empty: give the adapter's directory, or a hub id")
    try:
        lora_config = LoraConfig(
            max_lora_rank=max_lora_rank,
            lora_target_modules=target or [module_type.config_name for module_type in LoraModuleType],
            lora_ckpt_source=ckpt_source,
        )
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from error
    checker = AdapterChecker(model, lora_config, dtype=dtype)
    report = checker.check(LoRARequest(Path(adapter).name or adapter, 0, adapter))
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        show(report, Console())
    if not report.ok:
        raise typer.Exit(1)


def show(report: AdapterReport, console: Console) -> None:
    """Print a report: the modules, equal ones of several layers as one row, then notes, then the verdict."""
    if report.modules:
        table = Table("module", "in", "rank", "scale", "with", "KiB", title=Text(f"adapter {report.name}"))
        for name, modules in _group(report.modules):
            first = modules[0]
            table.add_row(
                name,
                f"{len(modules)} layers" if len(modules) > 1 else "1 place",
                str(first.rank),
                f"{first.scale:g}",
                ", ".join(first.extras),
                f"{sum(module.nbytes for module in modules) / 1024:.1f}",
            )
        console.print(table)
        stored = ", ".join(report.stored_dtypes)
        size = f"{report.nbytes / 2**20:.2f} MiB in {report.dtype}, stored as {stored}"
        console.print(f"{len(report.modules)} modules, rank <= {report.max_rank}, {size}", highlight=False)
    for note in report.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    outside = {module_type.config_name for module_type in set(LoraModuleType) - DEFAULT_TARGETS}
    if outside.intersection(report.target_modules):
        needed = list(report.target_modules)
        console.print(Text(f"note: the engine needs lora_target_modules={needed}, or more"), soft_wrap=True)
    for problem in report.problems:
        console.print(Text(f"problem: {problem}", style="red"), soft_wrap=True)
    console.print(Text(_verdict(report), style="bold green" if report.ok else "bold red"), soft_wrap=True)


def _verdict(report: AdapterReport) -> str:
    if not report.ok:
        return f"cannot be served: {len(report.problems)} problem(s)"
    if report.not_compared:
        return f"can be served if these equal the model's own, not compared: {', '.join(report.not_compared)}"
    return "can be served"


def _group(modules: tuple[ModuleReport, ...]) -> list[tuple[str, list[ModuleReport]]]:
    """Modules that differ by their layer alone, with their common name; other ranks or scales make another group."""
    groups: dict[tuple[object, ...], list[ModuleReport]] = {}
    for module in modules:
        name = re.sub(r"\blayers\.\d+\.", "layers.*.", module.name)
        groups.setdefault((name, module.rank, module.scale, module.extras), []).append(module)
    return [(str(key[0]) if len(group) > 1 else group[0].name, group) for key, group in groups.items()]
