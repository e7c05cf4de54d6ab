"""Adapters against a model that is not loaded: its sites are those of the same model on the meta device.

Called by `LLM.check_lora` and `tensorrt-lora adapter check`. Needs the model's config alone, no weights and no GPU.
"""

from os import PathLike, fspath

import torch

from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.adapters.adapter_report import AdapterReport, check_adapter
from tensorrt_lora.adapters.target_modules import resolve_target_modules
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.lora.lora_site import find_lora_sites
from tensorrt_lora.lora.module_types import target_types
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.dequantized_parameters import DequantizedParameters
from tensorrt_lora.models.gguf import resolve_checkpoint
from tensorrt_lora.utils.device import resolve_device, resolve_dtype


class AdapterChecker:
    """The verdicts of one engine that does not run.

    Args:
        model: checkpoint directory, .gguf file or hub id.
        lora_config: the engine's.
        dtype, device: the engine's; the two decide what dtype the adapters would have.
        max_bytes: host memory that one adapter may take; None leaves it open.

    Raises ValueError for a model that cannot be served, and for a `lora_dir` that cannot be read.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        lora_config: LoraConfig,
        *,
        dtype: str = "auto",
        device: str = "auto",
        max_bytes: int | None = None,
    ) -> None:
        config = ModelConfig.from_pretrained(str(resolve_checkpoint(fspath(model), with_weights=False)))
        torch_dtype = resolve_dtype(dtype, config.torch_dtype, resolve_device(device))
        skeleton = create_model(config, dtype=torch_dtype, device=torch.device("meta"), attn_backend="VANILLA")
        sites = find_lora_sites(skeleton)
        lora_config = resolve_target_modules(lora_config, sites)
        allowed = target_types(lora_config.lora_target_modules)
        self._max_bytes = max_bytes
        self._reader = AdapterReader(
            {name: site for name, site in sites.items() if site.module_type in allowed},
            lora_config,
            torch_dtype,
            base_parameters=DequantizedParameters(skeleton),
        )

    def check(self, request: LoRARequest) -> AdapterReport:
        """Whether the engine would load the adapter, and why not; the values in its files are read too."""
        return check_adapter(self._reader, request, max_bytes=self._max_bytes)
