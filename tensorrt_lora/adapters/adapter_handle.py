"""A loaded adapter, as requests and slots refer to it.

Made by `AdapterStore` once per load; all requests that run with the same load share it. Fits the engine's
protocols (`SlotTenant`, `LoraAdapter`, the scheduler's view of an adapter).
"""

from dataclasses import dataclass, field

from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora.adapter_weights import AdapterWeights


@dataclass(frozen=True, slots=True, eq=False)
class AdapterHandle:
    """An adapter's id, name and immutable weights in host memory.

    Attributes:
        key: identity for slots and the prefix cache.
        num_pages: pages of 16 rank rows that a slot needs. Like the key it is asked for in every step, so both are kept.
    """

    adapter_id: int
    name: str
    weights: AdapterWeights
    key: AdapterKey = field(init=False)
    num_pages: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", AdapterKey(self.adapter_id, self.version))
        object.__setattr__(self, "num_pages", self.weights.num_pages)

    @property
    def version(self) -> str:
        """Digest of the files' content: changed files make another version."""
        return self.weights.version

    @property
    def host_bytes(self) -> int:
        """Host memory in use; the parts of a fused projection share their A, which counts once."""
        tensors = [t for module in self.weights.modules.values() for t in (module.a, module.b)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
