"""Reads the adapter that a request names, for one model.

Owns the choice of the checkpoint format. The engine makes one and hands its `read` to `AdapterStore`, which calls it
from the loader thread; `check_adapter` wants only the verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.adapter_path import resolve_adapter_path
from tensorrt_lora.adapters.bound_checkpoint import BoundCheckpoint, ModelSites
from tensorrt_lora.adapters.load_pacer import GiveWay, go_on
from tensorrt_lora.adapters.nemo_checkpoint import bind_nemo_checkpoint
from tensorrt_lora.adapters.peft_checkpoint import bind_peft_checkpoint
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora_request import LoRARequest

_BINDERS = {"hf": bind_peft_checkpoint, "nemo": bind_nemo_checkpoint}


@dataclass(frozen=True, slots=True)
class AdapterReader:
    """What reading needs besides the request.

    Attributes:
        sites, lora_config, dtype, base_parameters: of the model; see `ModelSites`.
        pin_memory: page-lock the host copies, for asynchronous copies to a CUDA device.
        give_way: called after each piece of work; see `LoadPacer`.
    """

    sites: Mapping[str, LoraSite]
    lora_config: LoraConfig
    dtype: torch.dtype
    pin_memory: bool = False
    base_parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    give_way: GiveWay = go_on

    def read(self, request: LoRARequest) -> AdapterWeights:
        """The adapter's weights in host memory. Raises AdapterError when it cannot be applied whole."""
        problems = AdapterProblems(request.lora_name, request.lora_path)
        bound = self.bind(request, problems)
        weights = bound.to_weights(
            request.lora_name, self.model, pin_memory=self.pin_memory, problems=problems, give_way=self.give_way
        )
        bound.log(weights, self.model)
        return weights

    def bind(self, request: LoRARequest, problems: AdapterProblems) -> BoundCheckpoint:
        """The adapter as it is in its files; see `bind_peft_checkpoint` for what is raised and what is collected."""
        path = resolve_adapter_path(request.lora_path, problems)
        return _BINDERS[self.lora_config.lora_ckpt_source](path, self.model, problems, self.give_way)

    @property
    def model(self) -> ModelSites:
        return ModelSites(self.sites, self.lora_config, self.dtype, self.base_parameters)
