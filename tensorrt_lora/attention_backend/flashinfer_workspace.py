"""Device memory that all FlashInfer metadata objects of one engine share.

Owned by `FlashInferAttentionMetadata`; knows nothing of FlashInfer's wrappers. Eager steps and graphs of
every size use the same buffers. That is safe because all of them are written and read in the order of one
stream: a step's page tables and plan are copied, its kernels run, and only then come the copies of the next
step. So no `prepare` of one object may come between the `prepare` and the forward of another.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

import numpy as np
import torch

from tensorrt_lora.attention_backend.interface import AttentionBatch, compute_cache_slots
from tensorrt_lora.kernels.decode_attention_config import MAX_FUSED_REQUESTS, balanced_slice
from tensorrt_lora.kernels.decode_attention_workspace import DecodeAttentionWorkspace
from tensorrt_lora.utils.pinned_staging import PinnedStaging

Array = TypeVar("Array", np.ndarray, torch.Tensor)

_ALIGNMENT = 4  # int32 values: arrays in the step buffer begin on 16 bytes
_RECOMMENDED_FLOAT_BYTES = 128 * 2**20
_PLAN_BYTES = 2**20  # a plan takes about 13 bytes per tile, 8 per request and 4 per row: far below
_PREFILL_TILE = 128  # the largest


@dataclass(slots=True)
class StepArrays(Generic[Array]):
    """The page tables of one step, T tokens and R requests, all int32; on the host, or as views of the step
    buffer."""

    cache_slots: Array  # [T]: page * page_size + offset where the key and value of a token go
    indptr: Array  # [R + 1]: where each request begins in page_ids
    last_page_len: Array  # [R]: tokens in the last page, 1..page_size
    slice_tokens: Array  # [1]: tokens that a program of our decode kernel should read
    page_ids: Array  # the pages of all requests, one after the other; as a view, the rest of the buffer


def split_step(buffer: Array, num_tokens: int, num_requests: int) -> StepArrays[Array]:
    """The arrays of a step within a buffer; where they lie depends on T and R alone, so a graph can rely on
    it."""
    indptr = _align(num_tokens)
    last_page_len = indptr + _align(num_requests + 1)
    slice_tokens = last_page_len + _align(num_requests)
    page_ids = slice_tokens + _align(1)
    return StepArrays(
        cache_slots=buffer[:num_tokens],
        indptr=buffer[indptr : indptr + num_requests + 1],
        last_page_len=buffer[last_page_len : last_page_len + num_requests],
        slice_tokens=buffer[slice_tokens : slice_tokens + 1],
        page_ids=buffer[page_ids:],
    )


def step_size(num_tokens: int, num_requests: int, num_page_ids: int) -> int:
    """Values that a step's arrays take in the buffer."""
    return _align(num_tokens) + _align(num_requests + 1) + _align(num_requests) + _align(1) + num_page_ids


def _align(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


class StepBuffer:
    """One device buffer for the page tables of a step, filled by one transfer.

    Args:
        max_page_ids: most pages of a step, over all requests. Prefixes are shared, so this may exceed the
            pages there are.
    """

    def __init__(
        self,
        *,
        max_num_tokens: int,
        max_num_requests: int,
        max_page_ids: int,
        num_kv_heads: int,
        device: torch.device,
    ) -> None:
        self._num_kv_heads = num_kv_heads
        size = step_size(max_num_tokens, max_num_requests, max_page_ids)
        self._buffer = torch.zeros(size, dtype=torch.int32, device=device)
        self._staging = PinnedStaging(self._buffer)

    def views(self, num_tokens: int, num_requests: int) -> StepArrays[torch.Tensor]:
        """Where a step's arrays lie on the device."""
        return split_step(self._buffer, num_tokens, num_requests)

    def write(self, batch: AttentionBatch, page_size: int) -> StepArrays[np.ndarray]:
        """Fill the buffer in stream order, without waiting, and return the same arrays on the host.

        Requests of no tokens, which only fill up a graph, have no pages.
        """
        num_pages = [-(-kv_len // page_size) for kv_len in batch.kv_lens]
        num_page_ids = sum(num_pages)
        host = np.zeros(step_size(batch.num_tokens, batch.num_requests, num_page_ids), dtype=np.int32)
        arrays = split_step(host, batch.num_tokens, batch.num_requests)
        arrays.cache_slots[:] = compute_cache_slots(batch, page_size)
        np.cumsum(num_pages, out=arrays.indptr[1:])
        arrays.last_page_len[:] = (np.asarray(batch.kv_lens) - 1) % page_size + 1
        arrays.slice_tokens[0] = balanced_slice(sum(batch.kv_lens), self._num_kv_heads)
        pages = (ids[:count] for ids, count in zip(batch.page_ids, num_pages, strict=True))
        arrays.page_ids[:] = np.fromiter(chain.from_iterable(pages), dtype=np.int32, count=num_page_ids)
        self._staging.copy(host)
        return arrays


class FlashInferWorkspace:
    """The step buffer, FlashInfer's scratch memory, and that of our decode kernel.

    Args:
        kv_cache: [layers, pages, 2, page_size, K, D].
        num_heads: H.
    """

    def __init__(self, *, kv_cache: torch.Tensor, num_heads: int, max_num_requests: int, max_num_tokens: int) -> None:
        device = kv_cache.device
        _, num_pages, _, page_size, num_kv_heads, head_dim = kv_cache.shape
        float_bytes = float_workspace_bytes(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_num_requests=max_num_requests,
            num_sms=torch.cuda.get_device_properties(device).multi_processor_count,
        )
        self.float_buffer = torch.zeros(float_bytes, dtype=torch.uint8, device=device)
        self.plan_buffer = torch.empty(_PLAN_BYTES, dtype=torch.uint8, device=device)
        self.decode = DecodeAttentionWorkspace.create(kv_cache, num_heads, min(max_num_requests, MAX_FUSED_REQUESTS))
        self.step = StepBuffer(
            max_num_tokens=max_num_tokens,
            # A graph may have one request more, which owns the rows of padding.
            max_num_requests=max_num_requests + 1,
            max_page_ids=max_num_requests * num_pages + -(-max_num_tokens // page_size),
            num_kv_heads=num_kv_heads,
            device=device,
        )

    def grow(self, float_bytes: int) -> None:
        """Have `float_buffer` hold that much from now on; what was made before keeps the buffer that it has."""
        if self.float_buffer.numel() < float_bytes:
            self.float_buffer = torch.zeros(float_bytes, dtype=torch.uint8, device=self.float_buffer.device)


def float_workspace_bytes(
    *, num_heads: int, num_kv_heads: int, head_dim: int, max_num_requests: int, num_sms: int
) -> int:
    """Scratch for the partial results of requests whose KV is split over several blocks.

    FlashInfer 0.6 reserves an fp32 row of D + 1 values for every query head and row of every tile. It plans
    at most two blocks per SM, except that a graph has at least one tile per request (`PrefillSplitQOKVIndptr`
    in its scheduler.cuh).
    """
    group = num_heads // num_kv_heads
    split_tiles = 2 * num_sms // num_kv_heads
    decode_tile = _query_tile(group)
    decode_tiles = max(split_tiles, -(-max_num_requests * group // decode_tile) + max_num_requests - 1)
    rows = max(decode_tiles * decode_tile, split_tiles * _PREFILL_TILE)
    return max(_RECOMMENDED_FLOAT_BYTES, _scratch_bytes(num_heads, rows, head_dim))


def prefill_graph_bytes(
    *, num_heads: int, num_kv_heads: int, head_dim: int, num_tokens: int, num_requests: int, num_sms: int
) -> int:
    """The same for a graph of `num_tokens` rows that belong to `num_requests` requests, in any proportion.

    Its tiles are as high as the longest request needs, had all others one row.
    """
    group = num_heads // num_kv_heads
    tile = _query_tile((num_tokens - num_requests + 1) * group)
    tiles = max(2 * num_sms // num_kv_heads, -(-num_tokens * group // tile) + num_requests - 1)
    return _scratch_bytes(num_heads, tiles * tile, head_dim)


def _query_tile(rows: int) -> int:
    """FlashInfer's `FA2DetermineCtaTileQ`: tile height for `rows` rows, those of a head group side by side."""
    return 16 if rows <= 16 else 64 if rows <= 64 else _PREFILL_TILE


def _scratch_bytes(num_heads: int, rows: int, head_dim: int) -> int:
    alignment = 2 * 16
    return num_heads * rows * (head_dim + 1) * 4 + alignment
