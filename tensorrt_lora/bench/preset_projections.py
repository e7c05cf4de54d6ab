"""The projections of models that are not loaded: of the same model on the meta device.

Used by `tensorrt-lora tune` and `tensorrt-lora info --plan`. Needs configs alone.
"""

import tempfile
from pathlib import Path

import torch

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.gguf import resolve_checkpoint
from tensorrt_lora.models.projection import Projection, find_projections
from tensorrt_lora.utils.device import resolve_dtype


def preset_projections(preset: str) -> list[Projection]:
    """The projections of a preset's decoder layers. Raises ValueError for an unknown preset."""
    with tempfile.TemporaryDirectory() as directory:
        return model_projections(str(find_preset(preset).write(Path(directory))))


def model_projections(model: str) -> list[Projection]:
    """The same of a checkpoint directory, .gguf file or hub id. Raises ValueError for one that is not served."""
    config = ModelConfig.from_pretrained(str(resolve_checkpoint(model, with_weights=False)))
    dtype = resolve_dtype("auto", config.torch_dtype, torch.device("cuda"))
    skeleton = create_model(config, dtype=dtype, device=torch.device("meta"), attn_backend="VANILLA")
    return find_projections(skeleton)
