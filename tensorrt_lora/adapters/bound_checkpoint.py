"""One adapter, read and bound but not yet copied: what every checkpoint format becomes.

Owns the last step, the same for all formats, from bound tensors to `AdapterWeights`, and what the log says of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.bound_module import Binding
from tensorrt_lora.adapters.host_weights import make_host_weights
from tensorrt_lora.adapters.load_pacer import GiveWay, go_on
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.utils.logger import logger


@dataclass(frozen=True, slots=True)
class ModelSites:
    """What adapters are bound to.

    Attributes:
        sites: the model's adaptable modules by Hugging Face name.
        lora_config: limits and name map.
        dtype: the model's; A, B and biases are cast to it.
        base_parameters: the model's own "<hf_name>.weight" and "<hf_name>.bias"; values may be on the meta device. Left
            out, copies of them in adapter files are not compared.
    """

    sites: Mapping[str, LoraSite]
    lora_config: LoraConfig
    dtype: torch.dtype
    base_parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BoundCheckpoint:
    """An adapter's tensors as they are in its files, with the sites they go to; `version` is the files' digest."""

    version: str
    tensors: Mapping[str, torch.Tensor]
    binding: Binding
    base_model: str | None = None

    def to_weights(
        self,
        name: str,
        model: ModelSites,
        *,
        pin_memory: bool,
        problems: AdapterProblems,
        give_way: GiveWay = go_on,
    ) -> AdapterWeights:
        """Copy the tensors to host memory. Raises AdapterError if there is any problem, or a value is not finite."""
        problems.check()
        modules = make_host_weights(
            self.binding.modules, dtype=model.dtype, pin_memory=pin_memory, problems=problems, give_way=give_way
        )
        return AdapterWeights(name, self.version, modules)

    def log(self, weights: AdapterWeights, model: ModelSites) -> None:
        """Say what was loaded as `weights`, and what its author may want to know."""
        ranks = {module.rank for module in weights.modules.values() if module.rank}
        stored = {str(tensor.dtype).removeprefix("torch.") for tensor in self.tensors.values()}
        served = str(model.dtype).removeprefix("torch.")
        logger.info(
            "adapter %r: bound %d of %d modules, %d tensors, rank %s, %s%s, version %s",
            weights.name,
            len(weights.modules),
            len(model.sites),
            len(self.tensors),
            f"{min(ranks)} to {max(ranks)}" if len(ranks) > 1 else max(ranks),
            served,
            "" if stored == {served} else f" cast from {', '.join(sorted(stored))}",
            weights.version[:8],
        )
        for note in self.binding.notes:
            logger.warning("adapter %r: %s", weights.name, note)
