"""A loaded adapter, as requests and slots refer to it.

Made by `AdapterStore` once per load; all requests that run with the same load share it. Fits the engine's
protocols (`SlotTenant`, `LoraAdapter`, the scheduler's view of an adapter).
"""

from dataclasses import dataclass

from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora.adapter_weights import AdapterWeights


@dataclass(frozen=True, slots=True, eq=False)
class AdapterHandle:
    """An adapter's id, name and immutable weights in host memory."""

    adapter_id: int
    name: str
    weights: AdapterWeights

    @property
    def version(self) -> str:
        """Digest of the files' content: changed files make another version."""
        return self.weights.version

    @property
    def key(self) -> AdapterKey:
        """Identity for slots and the prefix cache."""
        return AdapterKey(self.adapter_id, self.version)

    @property
    def num_pages(self) -> int:
        """Pages of 16 rank rows that a slot needs."""
        return self.weights.num_pages

    @property
    def host_bytes(self) -> int:
        """Host memory in use; the parts of a fused projection share their A, which counts once."""
        tensors = [t for module in self.weights.modules.values() for t in (module.a, module.b)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
