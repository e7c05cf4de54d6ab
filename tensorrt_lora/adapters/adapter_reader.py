"""Reads the adapter that a request names, for one model.

Owns the choice of the checkpoint format and what an engine's `lora_dir` says about its targets. The engine
makes one and hands it to `AdapterStore`; a format that is served later is added here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.peft_checkpoint import read_peft_checkpoint
from tensorrt_lora.adapters.peft_files import PeftFilesReader
from tensorrt_lora.adapters.peft_keys import TensorRole, parse_key
from tensorrt_lora.adapters.site_index import SiteIndex
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora_request import LoRARequest


@dataclass(frozen=True, slots=True)
class AdapterReader:
    """What reading needs besides the request: the model's sites and dtype, and the engine's limits."""

    sites: Mapping[str, LoraSite]
    lora_config: LoraConfig
    dtype: torch.dtype
    pin_memory: bool = False

    def read(self, request: LoRARequest) -> AdapterWeights:
        """The adapter's weights in host memory. Raises AdapterError when it cannot be applied whole."""
        if self.lora_config.lora_ckpt_source != "hf":
            AdapterProblems(request.lora_name, request.lora_path).fail(
                f"lora_ckpt_source={self.lora_config.lora_ckpt_source!r} is not served yet; convert the "
                "adapter to PEFT's format and set lora_ckpt_source='hf'"
            )
        return read_peft_checkpoint(
            request.lora_name,
            request.lora_path,
            sites=self.sites,
            lora_config=self.lora_config,
            dtype=self.dtype,
            pin_memory=self.pin_memory,
        )


def find_target_modules(
    directories: Iterable[str], sites: Mapping[str, LoraSite], lora_config: LoraConfig
) -> list[str]:
    """TensorRT-LLM names of the modules that the PEFT adapters in `directories` change, for
    `lora_target_modules`.

    Tensors that bind to no site are left for `AdapterReader.read` to report. Raises AdapterError for a
    directory that cannot be read or that binds nowhere.
    """
    index = SiteIndex(sites, lora_config)
    found = set()
    for directory in directories:
        problems = AdapterProblems(Path(directory).name, directory)
        keys = [parse_key(key) for key in PeftFilesReader(Path(directory), problems).read().tensors]
        paths = {key.path for key in keys if key.role in (TensorRole.LORA_A, TensorRole.LORA_B)}
        types = {site.module_type for path in paths for site in index.resolve(path)}
        if not types:
            problems.fail(
                f"nothing in it adapts this model, which takes adapters on {', '.join(index.leaves)}"
            )
        found |= types
    return [module_type.config_name for module_type in sorted(found)]
