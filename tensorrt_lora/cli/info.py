"""`tensorrt-lora info`: what runs on this machine, and why; with `--plan`, how LoRA runs in CUDA graphs.

Owns the reports alone; the facts come from `utils/device.py`, the decisions from where the engine makes them.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import torch
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from tensorrt_lora.bench.plan_report import OTHERS, plan_report
from tensorrt_lora.bench.preset_projections import model_projections, preset_projections
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.validation_message import describe_validation_error
from tensorrt_lora.engine.model_loader import choose_attention_backend, choose_plan_table
from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable
from tensorrt_lora.lora.lora_plans import ProjectionShape
from tensorrt_lora.utils.device import device_facts, device_name, resolve_device

_PACKAGES = (
    "tensorrt_lora",
    "torch",
    "triton",
    "transformers",
    "flashinfer-python",
    "safetensors",
    "pydantic",
)


# FlashInfer depends on the model too; this is what most models have.
_COMMON_DTYPE = torch.bfloat16
_COMMON_HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that the engine decides from the machine, and the reason."""

    what: str
    chosen: str
    reason: str


def info(
    plan: Annotated[
        bool, typer.Option("--plan", help="Show which plan LoRA runs with instead; the other options are for this.")
    ] = False,
    preset: Annotated[str | None, typer.Option(help="A model shape, such as qwen3-8b-bf16.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Or a checkpoint directory, .gguf file or hub id. Its weights are not read.")
    ] = None,
    max_lora_rank: Annotated[int | None, typer.Option(help="The engine's.", show_default=False)] = None,
    max_loras: Annotated[int | None, typer.Option(help="The engine's.", show_default=False)] = None,
    max_batch_size: Annotated[int | None, typer.Option(help="The engine's.", show_default=False)] = None,
    overlap: Annotated[
        bool | None, typer.Option(help="The engine's overlap_lora_and_base.", show_default=False)
    ] = None,
    table: Annotated[str | None, typer.Option(help="A file of `tune`, in place of the table of the device.")] = None,
    device: Annotated[
        str | None, typer.Option(help='As CUDA names it, such as "NVIDIA H200"; the one here by default.')
    ] = None,
) -> None:
    """Show versions, devices, and what the engine would choose here by default."""
    lora = {"max_lora_rank": max_lora_rank, "max_loras": max_loras, "overlap_lora_and_base": overlap}
    if plan:
        show_plans(preset=preset, model=model, lora=lora, max_batch_size=max_batch_size, table_file=table, gpu=device)
        return
    if any(value is not None for value in (preset, model, max_batch_size, table, device, *lora.values())):
        raise ValueError("these options say what --plan shows: add it")
    console = Console()
    facts = Table("fact", "value", title="This machine")
    for name, value in {"Python": platform.python_version(), **_versions(), **device_facts()}.items():
        facts.add_row(name, value)
    choices = Table("what", "runs as", "because", title="What the engine chooses by default")
    for choice in engine_choices(resolve_device("auto")):
        choices.add_row(choice.what, choice.chosen, choice.reason)
    console.print(facts)
    console.print(choices)


def show_plans(
    *,
    preset: str | None,
    model: str | None,
    lora: dict[str, int | None],
    max_batch_size: int | None,
    table_file: str | None,
    gpu: str | None,
) -> None:
    """Print how LoRA runs in the captured graphs of an engine; None leaves a setting at its default.

    Args:
        lora: fields of `LoraConfig`.
        gpu: name of the device; None is the one here.

    Raises:
        ValueError: settings that are wrong or contradict each other.
    """
    if preset is not None and model is not None:
        raise ValueError("--preset and --model each name the projections: give one of them")
    if table_file is not None and gpu is not None:
        raise ValueError("--table and --device each name a table: give one of them")
    try:
        lora_config = LoraConfig.model_validate(_given(lora))
        args = TorchLlmArgs.model_validate(
            {"model": model or preset or "any", "lora_config": lora_config}
            | _given({"lora_plan_table": table_file, "max_batch_size": max_batch_size})
        )
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from error
    table = choose_plan_table(args, gpu or device_name(resolve_device("auto")))
    assert args.cuda_graph_config is not None
    sizes = {
        *args.cuda_graph_config.resolve_batch_sizes(args.max_batch_size),
        *args.cuda_graph_config.resolve_prefill_token_buckets(args.max_num_tokens),
    }
    console = Console()
    console.print(plan_report(table, _shapes(table, preset, model), sorted(sizes), lora_config))


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _shapes(table: LoraPlanTable, preset: str | None, model: str | None) -> dict[str, ProjectionShape]:
    """The projections to show: those of a model, or all that the table has."""
    if preset is None and model is None:
        return {**{str(shape): shape for shape in sorted(table.rows)}, "other projections": OTHERS}
    projections = preset_projections(preset) if preset is not None else model_projections(model or "")
    return {projection.name: projection.shape for projection in projections}


def engine_choices(device: torch.device) -> list[Choice]:
    """What the engine decides for `device` when every setting is at its default."""
    on_cuda = device.type == "cuda"
    return [
        Choice("device", str(device), "torch finds a CUDA device" if on_cuda else "torch finds no CUDA device"),
        _attention(device),
        _kernels(device),
        Choice(
            "CUDA graphs",
            "on" if on_cuda else "off",
            "decode steps are captured at start-up" if on_cuda else "they need a CUDA device",
        ),
        Choice(
            "overlap_lora_and_base",
            "inside CUDA graphs, when set" if on_cuda else "no effect: LoRA runs after base",
            "the second stream is used by captured steps" if on_cuda else "the CPU has one stream",
        ),
    ]


def _attention(device: torch.device) -> Choice:
    try:
        chosen = choose_attention_backend("FLASHINFER", _COMMON_DTYPE, _COMMON_HEAD_DIM, device)
    except ValueError as error:
        return Choice("attention", "VANILLA (torch)", str(error))
    return Choice(
        "attention",
        chosen,
        f"it serves {_COMMON_DTYPE} with heads of {_COMMON_HEAD_DIM}; other models may differ",
    )


def _kernels(device: torch.device) -> Choice:
    if not use_triton(torch.empty(0, device=device)):
        return Choice("LoRA and glue kernels", "torch reference", "Triton kernels need a CUDA device")
    if device.type == "cuda":
        return Choice("LoRA and glue kernels", "Triton", "the device is CUDA")
    return Choice("LoRA and glue kernels", "Triton, interpreted", "TRITON_INTERPRET=1 is set")


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
