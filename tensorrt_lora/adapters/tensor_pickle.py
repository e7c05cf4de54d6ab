"""Tensors out of a pickle by torch.save, and nothing else out of it.

Owns the one place where a pickle is opened: weights only, so that a file can never run code. Used by the checkpoint
readers for PEFT's old .bin files and for NeMo's archives.
"""

import io

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.peft_features import shorten
from tensorrt_lora.utils.logger import logger


def load_tensor_pickle(data: torch.Tensor, name: str, problems: AdapterProblems) -> dict[str, torch.Tensor]:
    """The dict of dense tensors in a file's content, [bytes] uint8. Raises AdapterError for anything else."""
    try:
        content = torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged pickle can raise anything, and all of it means the same; torch's words are about its own insides.
        logger.debug("%s: %s", name, error)
        problems.fail(
            f"{name} is truncated or holds more than tensors ({type(error).__name__}); save the adapter as safetensors"
        )
    if not isinstance(content, dict):
        problems.fail(f"{name} must hold a dict of tensors, got {type(content).__name__}")
    for key, value in content.items():
        kind = _kind(value)
        if not isinstance(key, str):
            problems.add(f"{name}: the name {shorten(key)} is {type(key).__name__}, not text; save LoRA tensors only")
        elif kind is not None:
            problems.add(f"{name}: entry {shorten(key)} is {kind}, not a dense tensor; save LoRA tensors only")
    problems.check()
    return {key: value.detach() for key, value in content.items()}


def _kind(value: object) -> str | None:
    """What `value` is if it is no dense tensor with values."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if value.is_meta:
        return "a tensor without values (on the meta device)"
    if value.is_nested:
        return "a nested tensor"
    if value.is_quantized:
        return "a quantised tensor"
    return None if value.layout == torch.strided else "a sparse tensor"
