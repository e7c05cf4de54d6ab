"""The least time of a decode step: the bytes that it must read, over the bandwidth.

Owns which bytes count. Activations, a thousandth of the weights at most, do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tensorrt_lora.bench.workload import Workload
from tensorrt_lora.engine.model_loader import LoadedModel


@dataclass(frozen=True, slots=True)
class ByteFloor:
    """Bytes that every decode step reads.

    Attributes:
        weights: the layers and the head; of the embedding a step reads a row per request only.
        kv_per_token: keys and values of one token over all layers.
        adapters: each adapter's weights, by its number.
    """

    weights: int
    kv_per_token: int
    adapters: tuple[int, ...]

    @classmethod
    def of(cls, loaded: LoadedModel, adapter_bytes: Sequence[int]) -> "ByteFloor":
        weights = sum(parameter.nbytes for parameter in loaded.model.parameters())
        if not loaded.config.tie_word_embeddings:
            weights -= loaded.model.model.embed_tokens.weight.nbytes
        _, pages, _, page_size, _, _ = loaded.kv_cache.shape
        return cls(weights, loaded.kv_cache.nbytes // (pages * page_size), tuple(adapter_bytes))

    def step_bytes(self, workload: Workload, *, with_adapters: bool) -> float:
        """Bytes of a decode step of the workload, on average over its decode steps."""
        context = workload.isl + workload.osl / 2  # isl + 1 tokens in the first, isl + osl - 1 in the last
        adapters = self.adapter_bytes(workload) if with_adapters else 0
        return self.weights + workload.concurrency * context * self.kv_per_token + adapters

    def adapter_bytes(self, workload: Workload) -> int:
        """Bytes of the workload's adapters, each counted once."""
        return sum(self.adapters[adapter] for adapter in set(workload.adapter_ids()))

    def milliseconds(self, workload: Workload, bandwidth: float, *, with_adapters: bool) -> float:
        """The floor at `bandwidth` bytes per second."""
        return self.step_bytes(workload, with_adapters=with_adapters) / bandwidth * 1e3
