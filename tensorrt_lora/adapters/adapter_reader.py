"""Reads the adapter that a request names, for one model.

Owns the choice of the checkpoint format. The engine makes one and hands its `read` to `AdapterStore`, which calls it
from the loader thread; `check_adapter` wants only the verdict.
"""

from dataclasses import dataclass

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.adapter_path import resolve_adapter_path
from tensorrt_lora.adapters.bound_checkpoint import BoundCheckpoint, ModelSites
from tensorrt_lora.adapters.nemo_checkpoint import bind_nemo_checkpoint
from tensorrt_lora.adapters.peft_checkpoint import bind_peft_checkpoint
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora_request import LoRARequest

_BINDERS = {"hf": bind_peft_checkpoint, "nemo": bind_nemo_checkpoint}


@dataclass(frozen=True, slots=True)
class AdapterReader:
    """What reading needs besides the request.

    Attributes:
        pin_memory: page-lock the host copies, for asynchronous copies to a CUDA device.
    """

    model: ModelSites
    pin_memory: bool = False

    def read(self, request: LoRARequest) -> AdapterWeights:
        """The adapter's weights in host memory. Raises AdapterError when it cannot be applied whole."""
        problems = AdapterProblems(request.lora_name, request.lora_path)
        bound = self.bind(request, problems)
        return bound.to_weights(request.lora_name, self.model, pin_memory=self.pin_memory, problems=problems)

    def bind(self, request: LoRARequest, problems: AdapterProblems) -> BoundCheckpoint:
        """The adapter as it is in its files; see `bind_peft_checkpoint` for what is raised and what is collected."""
        path = resolve_adapter_path(request.lora_path, problems)
        return _BINDERS[self.model.lora_config.lora_ckpt_source](path, self.model, problems)
