"""Tensors out of a pickle by torch.save, and nothing else out of it.

Owns the one place where a pickle is opened: weights only, so that a file can never run code. Used by the checkpoint
readers for PEFT's old .bin files and for NeMo's archives.
"""

import io

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems


def load_tensor_pickle(data: torch.Tensor, name: str, problems: AdapterProblems) -> dict[str, torch.Tensor]:
    """The dict of dense tensors in a file's content, [bytes] uint8. Raises AdapterError for anything else."""
    try:
        content = torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged pickle can raise anything, and all of it means the same.
        reason = str(error).strip().partition("\n")[0]
        problems.fail(
            f"{name} is truncated or holds more than tensors ({type(error).__name__}: {reason}); save the adapter as "
            "safetensors"
        )
    if not isinstance(content, dict):
        problems.fail(f"{name} must hold a dict of tensors, got {type(content).__name__}")
    for key, value in content.items():
        is_dense = isinstance(value, torch.Tensor) and value.layout == torch.strided
        if not (isinstance(key, str) and is_dense):
            kind = type(value).__name__
            problems.add(f"{name}: entry {key!r} is {kind}, not a dense tensor; save LoRA tensors only")
    problems.check()
    return content
