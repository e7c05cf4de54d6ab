"""Attention through FlashInfer 0.6: bfloat16, head size 128, any head group, eager or in a CUDA graph.

Decode steps of up to 64 requests have a kernel of our own and no plan (`kernels/decode_attention.py`). A layer of any
other decode step is two kernels: attend, merge split results. Contexts of eager steps have a kernel of their own
(FlashAttention 3 on Hopper, which never splits). Plans are made once a step for all layers. From Hopper on FlashInfer
launches its FlashAttention 2 kernels before their predecessor has finished, unless told otherwise: they wait
before they read a query, key or value. Plans and page tables are read before that; they are copied before the step's
first kernel starts.
"""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tensorrt_lora.attention_backend.flashinfer_prefill_graph import FlashInferPrefillGraphMetadata
from tensorrt_lora.attention_backend.flashinfer_workspace import FlashInferWorkspace, StepArrays
from tensorrt_lora.attention_backend.host_arrays import pinned_int32
from tensorrt_lora.attention_backend.interface import AttentionBackend, AttentionBatch, AttentionMetadata
from tensorrt_lora.attention_backend.planning_turns import PlanningTurns
from tensorrt_lora.kernels.decode_attention import HeadNormRope, PageTables, fused_decode_attention
from tensorrt_lora.kernels.decode_attention_config import MAX_FUSED_REQUESTS, serves_head_group
from tensorrt_lora.kernels.lora_delta import LoraDelta

if TYPE_CHECKING:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

_HEAD_DIM = 128
_PADDING_PAGE = 0


def flashinfer_unsupported_reason(dtype: torch.dtype, head_dim: int) -> str | None:
    """Why this backend does not serve such a model, or None if it does."""
    if dtype != torch.bfloat16:
        return f"FlashInfer attention is used for bfloat16 only, and the model runs in {dtype}"
    if head_dim != _HEAD_DIM:
        return f"FlashInfer attention is used for head size {_HEAD_DIM} only, and the model's is {head_dim}"
    return None


class FlashInferAttentionMetadata(AttentionMetadata):
    """Page tables and plans of one step.

    For a graph of decode rows, `max_num_requests` is its batch size; smaller batches are filled up with rows of
    length 1 on page 0.

    Bit-equality of eager and captured steps: our kernel splits the KV by the batch size and the lengths, a plan by
    these and the number of SMs, the same with and without a graph. So equal batches (padding rows included) give equal
    bits. FlashInfer's two ways to fix the split further do not go with graphs: `fixed_split_size` fails as soon as a
    batch needs more blocks than the graph has, and `disable_split_kv` leaves the graph's surplus blocks unmasked;
    without splits, a long request alone would also use one block per key head. Hence results may differ in the last
    bits between batches.

    Args:
        workspace: of the engine; None makes a new one, of this object's sizes. See
            `create_cuda_graph_metadata`.
    """

    def __init__(
        self,
        *,
        kv_cache: torch.Tensor,
        num_heads: int,
        max_num_requests: int,
        max_num_tokens: int,
        use_cuda_graph: bool,
        workspace: FlashInferWorkspace | None = None,
    ) -> None:
        # Here, not at the top: an optional dependency that takes seconds to import.
        import flashinfer

        super().__init__(
            kv_cache=kv_cache,
            num_heads=num_heads,
            max_num_requests=max_num_requests,
            max_num_tokens=max_num_tokens,
            use_cuda_graph=use_cuda_graph,
        )
        reason = flashinfer_unsupported_reason(kv_cache.dtype, self.head_dim)
        if reason is not None:
            raise ValueError(f"{reason}; set attn_backend='VANILLA'")
        assert not use_cuda_graph or max_num_requests == max_num_tokens, "graphs hold one token per request"
        self._flashinfer = flashinfer
        self._workspace = workspace or FlashInferWorkspace(
            kv_cache=kv_cache,
            num_heads=num_heads,
            max_num_requests=max_num_requests,
            max_num_tokens=max_num_tokens,
        )
        self._step = self._workspace.step.views(max_num_tokens, max_num_requests)
        self._num_contexts = 0
        self._num_context_tokens = 0
        self._prefill: PlanningTurns[BatchPrefillWithPagedKVCacheWrapper] | None = None
        if not use_cuda_graph:
            self._prefill = PlanningTurns(self._create_prefill_wrapper(), self._create_prefill_wrapper())
        self._fuses_decode = use_cuda_graph and self._may_fuse(max_num_requests)
        self._decode: PlanningTurns[BatchDecodeWithPagedKVCacheWrapper] | None = None
        if not self._fuses_decode:
            self._decode = PlanningTurns(self._create_decode_wrapper(), self._create_decode_wrapper())

    @property
    def fuses_decode(self) -> bool:
        return self._fuses_decode

    def create_cuda_graph_metadata(self, batch_size: int) -> "FlashInferAttentionMetadata":
        """The metadata of a graph of `batch_size` decode rows that shares this object's workspace."""
        assert batch_size <= self.max_num_requests
        return FlashInferAttentionMetadata(
            kv_cache=self.kv_cache,
            num_heads=self.num_heads,
            max_num_requests=batch_size,
            max_num_tokens=batch_size,
            use_cuda_graph=True,
            workspace=self._workspace,
        )

    def create_prefill_graph_metadata(self, num_tokens: int, num_requests: int) -> FlashInferPrefillGraphMetadata:
        """The same for the graph of steps with a prefill; the largest one sets the size of the common scratch."""
        assert num_tokens <= self.max_num_tokens and num_requests <= self.max_num_requests + 1
        return FlashInferPrefillGraphMetadata(
            kv_cache=self.kv_cache,
            num_heads=self.num_heads,
            max_num_requests=num_requests,
            max_num_tokens=num_tokens,
            workspace=self._workspace,
        )

    def prepare(self, batch: AttentionBatch) -> None:
        if self.use_cuda_graph:
            batch = _fill_up(batch, self.max_num_requests)
        assert batch.num_requests <= self.max_num_requests and batch.num_tokens <= self.max_num_tokens
        assert all(length == 1 for length in batch.query_lens[batch.num_contexts :])
        self.num_tokens = batch.num_tokens
        self._num_contexts = batch.num_contexts
        self._num_context_tokens = sum(batch.query_lens[: batch.num_contexts])
        host = self._workspace.step.write(batch, self.page_size)
        self._step = self._workspace.step.views(batch.num_tokens, batch.num_requests)
        self.cache_slots[: batch.num_tokens].copy_(self._step.cache_slots)
        if not self.use_cuda_graph:
            self._fuses_decode = batch.num_contexts == 0 and self._may_fuse(batch.num_requests)
        if self._fuses_decode:
            return
        if self.use_cuda_graph:
            self._plan_graph(host)
        else:
            self._plan_eager(batch, host)

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        norm_rope: HeadNormRope,
        kv_cache: torch.Tensor,
        delta: LoraDelta | None,
    ) -> torch.Tensor:
        """All of a fused step's attention, as `AttentionBackend.decode`, over one layer's cache."""
        assert self._fuses_decode
        step = self._step
        pages = PageTables(step.indptr, step.page_ids, step.last_page_len, step.slice_tokens)
        return fused_decode_attention(q, k, v, norm_rope, kv_cache, pages, self._workspace.decode, delta)

    def attend(self, q: torch.Tensor, kv_cache: torch.Tensor, output: torch.Tensor) -> None:
        """Attention of `q` [T, H, D] over one layer's cache, into `output` [T, H, D]."""
        assert not self._fuses_decode, "nothing was planned"
        split = self._num_context_tokens
        if split > 0:
            assert self._prefill is not None
            self._prefill.planned.run(q[:split], kv_cache, out=output[:split])
        if split < self.num_tokens:
            assert self._decode is not None
            self._decode.planned.run(q[split:], kv_cache, out=output[split:])

    def _may_fuse(self, num_requests: int) -> bool:
        return num_requests <= MAX_FUSED_REQUESTS and serves_head_group(self.num_heads, self.num_kv_heads)

    def _plan_eager(self, batch: AttentionBatch, host: StepArrays[np.ndarray]) -> None:
        contexts = self._num_contexts
        query_indptr, indptr, last_page_len, kv_lens = pinned_int32(
            np.cumsum([0, *batch.query_lens[:contexts]]), host.indptr, host.last_page_len, batch.kv_lens
        )
        if contexts > 0:
            assert self._prefill is not None
            with self._prefill.next() as prefill:
                prefill.plan(
                    query_indptr,
                    indptr[: contexts + 1],
                    self._step.page_ids,
                    last_page_len[:contexts],
                    self.num_heads,
                    self.num_kv_heads,
                    self.head_dim,
                    self.page_size,
                    causal=True,
                    q_data_type=self.kv_cache.dtype,
                    seq_lens=kv_lens[:contexts],
                    max_token_per_sequence=max(batch.query_lens),
                )
        if contexts < batch.num_requests:
            assert self._decode is not None
            with self._decode.next() as decode:
                decode.plan(
                    indptr[contexts:],
                    self._step.page_ids,
                    last_page_len[contexts:],
                    self.num_heads,
                    self.num_kv_heads,
                    self.head_dim,
                    self.page_size,
                    q_data_type=self.kv_cache.dtype,
                    seq_lens=kv_lens[contexts:],
                )

    def _plan_graph(self, host: StepArrays[np.ndarray]) -> None:
        # The fast form leaves the wrapper's device buffers alone: they are the views that `write` has just
        # filled. It reads the two host arrays and copies nothing of them.
        assert self._decode is not None
        indptr = torch.from_numpy(host.indptr)
        with self._decode.next() as decode:
            self._flashinfer.fast_decode_plan(
                decode,
                indptr,
                self._step.page_ids,
                torch.from_numpy(host.last_page_len),
                self.num_heads,
                self.num_kv_heads,
                self.head_dim,
                self.page_size,
                q_data_type=self.kv_cache.dtype,
                kv_data_type=self.kv_cache.dtype,
                global_override_indptr_cpu=indptr,
            )

    def _create_prefill_wrapper(self) -> "BatchPrefillWithPagedKVCacheWrapper":
        return self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace.float_buffer, "NHD")

    def _create_decode_wrapper(self) -> "BatchDecodeWithPagedKVCacheWrapper":
        # Tensor cores pay even for one query row: the query heads of a key head share the tile.
        wrapper = self._flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace.float_buffer,
            "NHD",
            use_cuda_graph=self.use_cuda_graph,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=self._step.indptr if self.use_cuda_graph else None,
            paged_kv_indices_buffer=self._step.page_ids if self.use_cuda_graph else None,
            paged_kv_last_page_len_buffer=self._step.last_page_len if self.use_cuda_graph else None,
        )
        wrapper.reset_workspace_buffer(self._workspace.float_buffer, self._workspace.plan_buffer)
        if self.use_cuda_graph:
            self._load_decode_kernels(wrapper)
        return wrapper

    def _load_decode_kernels(self, wrapper: "BatchDecodeWithPagedKVCacheWrapper") -> None:
        """The full form of `plan`, which the fast one relies on for the kernels and the data types."""
        rows = self.max_num_requests
        wrapper.plan(
            torch.arange(rows + 1, dtype=torch.int32),
            torch.full((rows,), _PADDING_PAGE, dtype=torch.int32, device=self.kv_cache.device),
            torch.ones(rows, dtype=torch.int32),
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            self.page_size,
            q_data_type=self.kv_cache.dtype,
        )


def _fill_up(batch: AttentionBatch, num_requests: int) -> AttentionBatch:
    """The decode batch with padding rows up to `num_requests`."""
    assert batch.num_contexts == 0, "graphs hold decode rows only"
    missing = num_requests - batch.num_requests
    return AttentionBatch(
        num_contexts=0,
        query_lens=batch.query_lens + [1] * missing,
        kv_lens=batch.kv_lens + [1] * missing,
        page_ids=batch.page_ids + [[_PADDING_PAGE]] * missing,
    )


class FlashInferAttention(AttentionBackend):
    """Attention of one layer."""

    Metadata: ClassVar[type[AttentionMetadata]] = FlashInferAttentionMetadata
    supports_cuda_graph: ClassVar[bool] = True

    def forward(self, q: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        assert isinstance(metadata, FlashInferAttentionMetadata | FlashInferPrefillGraphMetadata)
        num_tokens = q.shape[0]
        assert num_tokens == metadata.num_tokens, f"{num_tokens} rows, prepared for {metadata.num_tokens}"
        query = q.view(num_tokens, self.num_heads, self.head_dim)
        output = q.new_empty(query.shape)
        metadata.attend(query, metadata.kv_cache[self.layer_idx], output)
        return output.view(num_tokens, -1)

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        norm_rope: HeadNormRope,
        metadata: AttentionMetadata,
        delta: LoraDelta | None = None,
    ) -> torch.Tensor:
        assert isinstance(metadata, FlashInferAttentionMetadata)
        assert q.shape[0] == metadata.num_tokens, f"{q.shape[0]} rows, prepared for {metadata.num_tokens}"
        return metadata.decode(q, k, v, norm_rope, metadata.kv_cache[self.layer_idx], delta)
