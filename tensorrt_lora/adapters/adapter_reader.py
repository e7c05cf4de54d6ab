"""Reads the adapter that a request names, for one model.

Owns the choice of the checkpoint format. The engine makes one and hands its `read` to `AdapterStore`; formats
that are served later come in here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.peft_checkpoint import read_peft_checkpoint
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
