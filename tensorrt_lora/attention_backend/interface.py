"""What attention needs per batch, and the contract of a backend.

The engine fills an `AttentionBatch` with host integers and hands it to `AttentionMetadata.prepare` once a
step; every layer then calls its `AttentionBackend.forward`, or `decode`, with that metadata. Knows neither requests
nor models.

Shapes: T tokens of the step, H query heads, K key/value heads, D head size.
The KV cache is one tensor [layers, pages, 2 (key, value), page_size, K, D] in the model's dtype. Page 0
belongs to padding rows. What slots beyond a sequence hold, NaN even, must not reach its result: their page may have
been another request's.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from tensorrt_lora.kernels.decode_attention import HeadNormRope
from tensorrt_lora.kernels.lora_delta import LoraDelta


@dataclass(slots=True)
class AttentionBatch:
    """One step in host integers: contexts (prefill chunks) first, then generations of one token each.

    A generation may also be given as a context of one token.
    """

    num_contexts: int
    query_lens: list[int]  # tokens of each request in this step
    kv_lens: list[int]  # tokens of each request in the cache after this step
    page_ids: list[list[int]]  # pages of each request, at least ceil(kv_len / page_size) of them

    @property
    def num_requests(self) -> int:
        return len(self.query_lens)

    @property
    def num_tokens(self) -> int:
        return sum(self.query_lens)


def compute_cache_slots(batch: AttentionBatch, page_size: int) -> np.ndarray:
    """Where each token's key and value go: int64 [T], page * page_size + offset."""
    slots: list[np.ndarray] = []
    for row in range(batch.num_contexts):
        kv_len = batch.kv_lens[row]
        positions = np.arange(kv_len - batch.query_lens[row], kv_len)
        pages = np.asarray(batch.page_ids[row], dtype=np.int64)
        slots.append(pages[positions // page_size] * page_size + positions % page_size)
    generations = [
        batch.page_ids[row][(kv_len - 1) // page_size] * page_size + (kv_len - 1) % page_size
        for row, kv_len in enumerate(batch.kv_lens)
        if row >= batch.num_contexts
    ]
    slots.append(np.asarray(generations, dtype=np.int64))
    return np.concatenate(slots)


class AttentionMetadata(ABC):
    """The attention inputs of one step. One object serves all eager steps; a CUDA graph has one of its own.

    Args:
        kv_cache: [layers, pages, 2, page_size, K, D].
        num_heads: H.
        max_num_requests: most requests of a step.
        max_num_tokens: most tokens of a step.
        use_cuda_graph: forwards with this object are captured, so device buffers keep their addresses.
    """

    def __init__(
        self,
        *,
        kv_cache: torch.Tensor,
        num_heads: int,
        max_num_requests: int,
        max_num_tokens: int,
        use_cuda_graph: bool,
    ) -> None:
        assert kv_cache.dim() == 6 and kv_cache.shape[2] == 2, f"not a paged KV cache: {tuple(kv_cache.shape)}"
        self.kv_cache = kv_cache
        self.num_heads = num_heads
        self.max_num_requests = max_num_requests
        self.max_num_tokens = max_num_tokens
        self.use_cuda_graph = use_cuda_graph
        self.num_tokens = 0
        self.cache_slots = torch.zeros(max_num_tokens, dtype=torch.int64, device=kv_cache.device)

    @property
    def page_size(self) -> int:
        return self.kv_cache.shape[3]

    @property
    def num_kv_heads(self) -> int:
        return self.kv_cache.shape[4]

    @property
    def head_dim(self) -> int:
        return self.kv_cache.shape[5]

    @property
    def fuses_decode(self) -> bool:
        """Whether layers call `AttentionBackend.decode` in the step that was prepared, or else `forward`.

        A captured graph keeps the answer of its capture, so there it may not change.
        """
        return False

    @abstractmethod
    def prepare(self, batch: AttentionBatch) -> None:
        """Describe the next forward: set `num_tokens`, fill `cache_slots` and the backend's own buffers.

        Device buffers are written in place and the device is not waited for.
        """

    def create_cuda_graph_metadata(self, batch_size: int) -> "AttentionMetadata":
        """Metadata for the captured graph of `batch_size` decode rows, beside this eager one.

        Only for backends with `supports_cuda_graph`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not run in CUDA graphs")

    def create_prefill_graph_metadata(self, num_tokens: int, num_requests: int) -> "AttentionMetadata":
        """Metadata for the captured graph of steps with a prefill, padded to `num_tokens` rows, beside this eager one.

        Its `prepare` takes contexts only, at most `num_requests` of them, that have all rows together. Only for
        backends with `supports_cuda_graph`; ask for the largest first.
        """
        raise NotImplementedError(f"{type(self).__name__} does not run in CUDA graphs")


class AttentionBackend(ABC):
    """Attention of one decoder layer over the paged cache. Has no parameters."""

    Metadata: ClassVar[type[AttentionMetadata]]
    supports_cuda_graph: ClassVar[bool] = False

    def __init__(self, *, layer_idx: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        assert num_heads % num_kv_heads == 0, f"{num_heads} heads do not share {num_kv_heads} key/value heads evenly"
        self.layer_idx = layer_idx
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim

    @abstractmethod
    def forward(self, q: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Attend causally within each request.

        The keys and values of these tokens are in the cache already, at `metadata.cache_slots`: `Attention`
        has them written where it finishes the keys.

        Args:
            q: [T, H * D], rows may be strided.
            metadata: of this backend's `Metadata` type, prepared for these T tokens.

        Returns:
            [T, H * D], contiguous.
        """

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        norm_rope: HeadNormRope,
        metadata: AttentionMetadata,
        delta: LoraDelta | None = None,
    ) -> torch.Tensor:
        """Attend as `forward` does, from projections: heads are normalised and rotated here, and the cache is written.

        Only where `metadata.fuses_decode`.

        Args:
            q: [T, H * D], rows may be strided.
            k: [T, K * D], likewise.
            v: [T, K * D], likewise.
            norm_rope: of these T tokens.
            metadata: as for `forward`.
            delta: still to be added to q, k and v: of these three modules.

        Returns:
            [T, H * D], contiguous.
        """
        raise NotImplementedError(f"{type(self).__name__} has no fused decode")
