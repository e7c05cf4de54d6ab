"""`tensorrt-lora info`: what runs on this machine, and why.

Owns the report alone; the facts come from `utils/device.py`, the decisions from where the engine makes them.
"""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from rich.console import Console
from rich.table import Table

from tensorrt_lora.engine.model_loader import choose_attention_backend
from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.utils.device import device_facts, resolve_device

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


def info() -> None:
    """Show versions, devices, and what the engine would choose here by default."""
    console = Console()
    facts = Table("fact", "value", title="This machine")
    for name, value in {"Python": platform.python_version(), **_versions(), **device_facts()}.items():
        facts.add_row(name, value)
    choices = Table("what", "runs as", "because", title="What the engine chooses by default")
    for choice in engine_choices(resolve_device("auto")):
        choices.add_row(choice.what, choice.chosen, choice.reason)
    console.print(facts)
    console.print(choices)


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
