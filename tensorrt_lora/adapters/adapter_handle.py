"""A loaded adapter, as requests and slots refer to it.

Made by `AdapterStore` once per load; all requests that run with the same load share it. Fits the engine's
protocols (`SlotTenant`, `LoraAdapter`, the scheduler's view of an adapter).
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests

AdapterRequest: TypeAlias = LoRARequest | WeightedLoRARequests
AdapterSource: TypeAlias = int | tuple[tuple[int, float], ...]
"""What is asked for: one adapter by its id, or (id, weight) of each part of a combination."""

COMBINED_ID = -1


@dataclass(frozen=True, slots=True, eq=False)
class AdapterHandle:
    """An adapter's id, name and immutable weights in host memory.

    Attributes:
        adapter_id: `COMBINED_ID` for a combination.
        path: where it was read from, as the first request for it said.
        parts: ids and weights of a combination; () for a single adapter.
        key: identity for slots and the prefix cache.
        num_pages: pages of 16 rank rows that a slot needs. Like the key it is asked for in every step, so it is kept.
    """

    adapter_id: int
    name: str
    weights: AdapterWeights
    parts: tuple[tuple[int, float], ...] = ()
    path: str = ""
    key: AdapterKey = field(init=False)
    num_pages: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", AdapterKey(self.adapter_id, self.version))
        object.__setattr__(self, "num_pages", self.weights.num_pages)

    @classmethod
    def create(cls, request: AdapterRequest, weights: AdapterWeights) -> "AdapterHandle":
        """The handle of what was loaded for `request`."""
        if isinstance(request, LoRARequest):
            return cls(request.lora_int_id, request.lora_name, weights, path=request.path)
        return cls(COMBINED_ID, request.name, weights, _parts(request), request.path)

    @property
    def source(self) -> AdapterSource:
        return self.parts or self.adapter_id

    @property
    def version(self) -> str:
        """Digest of the files' content: changed files make another version."""
        return self.weights.version

    @property
    def host_bytes(self) -> int:
        """Host memory in use; the parts of a fused projection share their A, which counts once."""
        tensors = [tensor for module in self.weights.modules.values() for tensor in module.tensors]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors if tensor.numel()}.values())

    def check_size(self, request: AdapterRequest, max_bytes: int | None) -> None:
        """Raise AdapterError if it takes more than `max_bytes` of host memory; None is no limit."""
        if max_bytes is not None and self.host_bytes > max_bytes:
            problem = (
                f"it takes {self.host_bytes} bytes of host memory, but peft_cache_config.host_cache_size is "
                f"{max_bytes}; raise it to {self.host_bytes} or more"
            )
            raise AdapterError(request.name, request.path, [problem], "does_not_fit")


def source_of(request: AdapterRequest) -> AdapterSource:
    """What `request` asks for: equal sources share a load."""
    return request.lora_int_id if isinstance(request, LoRARequest) else _parts(request)


def adapter_ids(source: AdapterSource) -> set[int]:
    """The adapters that `source` is made of."""
    return {source} if isinstance(source, int) else {adapter_id for adapter_id, _ in source}


def _parts(request: WeightedLoRARequests) -> tuple[tuple[int, float], ...]:
    return tuple((one.lora_int_id, float(weight)) for one, weight in request.parts)
