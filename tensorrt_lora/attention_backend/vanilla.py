"""Attention in plain torch operations: any device, dtype and head size, eager only.

Prefill chunks run one by one. Decode rows run in batches of rows whose page counts round up to the same power
of two, so that a row's padding, and hence its rounding, depends on the row alone and never on its neighbours.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from tensorrt_lora.attention_backend.interface import (
    AttentionBackend,
    AttentionBatch,
    AttentionMetadata,
    compute_cache_slots,
)
from tensorrt_lora.kernels.paged_attention import (
    chunk_mask,
    decode_attention,
    prefill_attention,
)
from tensorrt_lora.utils.pinned_staging import PinnedStaging


@dataclass(slots=True)
class PrefillChunk:
    """One context request of the step."""

    tokens: slice  # its rows among the step's tokens
    kv_len: int
    page_ids: torch.Tensor  # [ceil(kv_len / page_size)] int64
    mask: torch.Tensor | None  # as `prefill_attention` wants it


@dataclass(slots=True)
class DecodeGroup:
    """Generation requests of the step with equally padded page tables."""

    tokens: torch.Tensor  # [B] int64: their rows among the step's tokens
    page_table: torch.Tensor  # [B, P] int64
    mask: torch.Tensor  # [B, 1, 1, P * page_size]


class VanillaAttentionMetadata(AttentionMetadata):
    """Page tables and masks of one step."""

    def __init__(
        self,
        *,
        kv_cache: torch.Tensor,
        num_heads: int,
        max_num_requests: int,
        max_num_tokens: int,
        use_cuda_graph: bool,
    ) -> None:
        if use_cuda_graph:
            raise ValueError(
                "VANILLA attention runs eagerly only; set cuda_graph_config=None or attn_backend='FLASHINFER'"
            )
        super().__init__(
            kv_cache=kv_cache,
            num_heads=num_heads,
            max_num_requests=max_num_requests,
            max_num_tokens=max_num_tokens,
            use_cuda_graph=use_cuda_graph,
        )
        self._staging = PinnedStaging(self.cache_slots)
        self.chunks: list[PrefillChunk] = []
        self.decode_groups: list[DecodeGroup] = []

    def prepare(self, batch: AttentionBatch) -> None:
        assert batch.num_requests <= self.max_num_requests and batch.num_tokens <= self.max_num_tokens
        assert all(length == 1 for length in batch.query_lens[batch.num_contexts :])
        self.num_tokens = batch.num_tokens
        self._staging.copy(compute_cache_slots(batch, self.page_size))
        self.chunks = self._plan_chunks(batch)
        self.decode_groups = self._plan_decode_groups(batch)

    def _num_pages(self, kv_len: int) -> int:
        return -(-kv_len // self.page_size)

    def _to_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.kv_cache.device, non_blocking=True)

    def _plan_chunks(self, batch: AttentionBatch) -> list[PrefillChunk]:
        chunks = []
        start = 0
        for row in range(batch.num_contexts):
            length, kv_len = batch.query_lens[row], batch.kv_lens[row]
            pages = np.asarray(batch.page_ids[row][: self._num_pages(kv_len)], dtype=np.int64)
            mask = None
            if length < kv_len:
                mask = chunk_mask(length, kv_len, self.kv_cache.dtype, self.kv_cache.device)
            chunks.append(PrefillChunk(slice(start, start + length), kv_len, self._to_device(pages), mask))
            start += length
        return chunks

    def _plan_decode_groups(self, batch: AttentionBatch) -> list[DecodeGroup]:
        rows_by_width: dict[int, list[int]] = {}
        for row in range(batch.num_contexts, batch.num_requests):
            width = 1 << (self._num_pages(batch.kv_lens[row]) - 1).bit_length()
            rows_by_width.setdefault(width, []).append(row)

        first_token = sum(batch.query_lens[: batch.num_contexts])
        groups = []
        for width, rows in rows_by_width.items():
            page_table = np.zeros((len(rows), width), dtype=np.int64)
            for index, row in enumerate(rows):
                pages = batch.page_ids[row][: self._num_pages(batch.kv_lens[row])]
                page_table[index, : len(pages)] = pages
            kv_lens = np.asarray([batch.kv_lens[row] for row in rows])
            beyond = np.arange(width * self.page_size) >= kv_lens[:, None]
            mask = torch.zeros(beyond.shape, dtype=self.kv_cache.dtype, device=self.kv_cache.device)
            mask.masked_fill_(self._to_device(beyond), -torch.inf)
            tokens = np.asarray(rows, dtype=np.int64) - batch.num_contexts + first_token
            groups.append(DecodeGroup(self._to_device(tokens), self._to_device(page_table), mask[:, None, None, :]))
        return groups


class VanillaAttention(AttentionBackend):
    """Attention of one layer through `scaled_dot_product_attention` over gathered pages."""

    Metadata: ClassVar[type[AttentionMetadata]] = VanillaAttentionMetadata

    def forward(self, q: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        assert isinstance(metadata, VanillaAttentionMetadata)
        num_tokens = q.shape[0]
        assert num_tokens == metadata.num_tokens, f"{num_tokens} rows, prepared for {metadata.num_tokens}"
        query = q.view(num_tokens, self.num_heads, self.head_dim)
        kv_cache = metadata.kv_cache[self.layer_idx]
        output = q.new_empty(query.shape)
        for chunk in metadata.chunks:
            output[chunk.tokens] = prefill_attention(
                query[chunk.tokens], kv_cache, chunk.page_ids, chunk.kv_len, chunk.mask
            )
        for group in metadata.decode_groups:
            output[group.tokens] = decode_attention(query[group.tokens], kv_cache, group.page_table, group.mask)
        return output.view(num_tokens, -1)
