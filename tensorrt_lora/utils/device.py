"""Facts about the device. The only place, with op dispatch and the graph runner, that asks which device it is."""

import importlib.util
import os
from pathlib import Path

import torch


def resolve_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu` or `cuda`.

    Raises:
        ValueError: `cuda` was asked for and torch finds no CUDA device.
    """
    if name == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if name == "cuda":
        raise ValueError("device='cuda' was asked for, but torch finds no CUDA device; use device='cpu' or 'auto'")
    return torch.device("cpu")


def resolve_dtype(name: str, checkpoint_dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    """The torch dtype for `auto`, `float32` or `bfloat16`.

    `auto` is the checkpoint's own dtype where that is served. float16, and a checkpoint that does not say, become
    bfloat16 on CUDA and float32 on the CPU, which multiplies float16 two hundred times slower than bfloat16.
    """
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if checkpoint_dtype in (torch.float32, torch.bfloat16):
        return checkpoint_dtype
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`: free CUDA memory, or the host's available memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserved_unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + reserved_unused
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def pin_memory_available(device: torch.device) -> bool:
    """Whether host buffers for `device` should be page-locked, so that copies to it can be asynchronous."""
    return device.type == "cuda"


def computes_on_host(device: torch.device) -> bool:
    """Whether work of the host on the side takes processors and memory bandwidth from the model's steps."""
    return device.type == "cpu"


def flashinfer_available() -> bool:
    """Whether FlashInfer can be imported."""
    return importlib.util.find_spec("flashinfer") is not None


def device_name(device: torch.device) -> str:
    """As CUDA names it ("NVIDIA H200"), or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def device_facts() -> dict[str, str]:
    """Name and memory of the device that `auto` resolves to, for reports."""
    device = resolve_device("auto")
    facts = {"device": str(device), "free memory": f"{free_memory(device) / 2**30:.1f} GiB"}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["name"] = properties.name
        facts["capability"] = f"{properties.major}.{properties.minor}"
        facts["multiprocessors"] = str(properties.multi_processor_count)
        facts["CUDA"] = str(torch.version.cuda)
    return facts
