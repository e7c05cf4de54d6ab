"""FlashInfer's plans for a captured step with a prefill in it: contexts and decodes are rows of one kernel.

Made by `FlashInferAttentionMetadata`, whose workspace it shares; used by `FlashInferAttention` and the model engine.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch

from tensorrt_lora.attention_backend.flashinfer_workspace import FlashInferWorkspace, prefill_graph_bytes
from tensorrt_lora.attention_backend.host_arrays import pinned_int32
from tensorrt_lora.attention_backend.interface import AttentionBatch, AttentionMetadata
from tensorrt_lora.attention_backend.planning_turns import PlanningTurns

if TYPE_CHECKING:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper


class FlashInferPrefillGraphMetadata(AttentionMetadata):
    """Page tables and plans of a graph of `max_num_tokens` rows, all of which belong to some request.

    The kernel is FlashAttention 2, whose grid, tile height and scratch follow from the two sizes alone when it plans
    for a graph; what a step's plan does not use is masked. Requests that are missing are filled up with such of no
    tokens, which have no tiles.

    Args:
        max_num_requests: at most `max_num_tokens`.
        workspace: of the engine.
    """

    def __init__(
        self,
        *,
        kv_cache: torch.Tensor,
        num_heads: int,
        max_num_requests: int,
        max_num_tokens: int,
        workspace: FlashInferWorkspace,
    ) -> None:
        super().__init__(
            kv_cache=kv_cache,
            num_heads=num_heads,
            max_num_requests=max_num_requests,
            max_num_tokens=max_num_tokens,
            use_cuda_graph=True,
        )
        assert max_num_requests <= max_num_tokens
        self._workspace = workspace
        workspace.grow(
            prefill_graph_bytes(
                num_heads=num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                num_tokens=max_num_tokens,
                num_requests=max_num_requests,
                num_sms=torch.cuda.get_device_properties(kv_cache.device).multi_processor_count,
            )
        )
        self._step = workspace.step.views(max_num_tokens, max_num_requests)
        self._query_indptr = torch.zeros(max_num_requests + 1, dtype=torch.int32, device=kv_cache.device)
        self._prefill = PlanningTurns(self._create_wrapper(), self._create_wrapper())

    def prepare(self, batch: AttentionBatch) -> None:
        assert batch.num_contexts == batch.num_requests <= self.max_num_requests
        assert batch.num_tokens == self.max_num_tokens, "padding rows belong to a request, too"
        batch = _fill_up(batch, self.max_num_requests)
        self.num_tokens = batch.num_tokens
        host = self._workspace.step.write(batch, self.page_size)
        self.cache_slots.copy_(self._step.cache_slots)
        query_indptr, indptr, last_page_len, kv_lens = pinned_int32(
            np.cumsum([0, *batch.query_lens]), host.indptr, host.last_page_len, batch.kv_lens
        )
        with self._prefill.next() as prefill:
            prefill.plan(
                query_indptr,
                indptr,
                self._step.page_ids[: len(host.page_ids)],  # where the wrapper would copy them: nothing is moved
                last_page_len,
                self.num_heads,
                self.num_kv_heads,
                self.head_dim,
                self.page_size,
                causal=True,
                q_data_type=self.kv_cache.dtype,
                seq_lens=kv_lens,
                max_token_per_sequence=max(batch.query_lens),
            )

    def attend(self, q: torch.Tensor, kv_cache: torch.Tensor, output: torch.Tensor) -> None:
        """Attention of `q` [T, H, D] over one layer's cache, into `output` [T, H, D]."""
        self._prefill.planned.run(q, kv_cache, out=output)

    def _create_wrapper(self) -> "BatchPrefillWithPagedKVCacheWrapper":
        # Here, not at the top: an optional dependency that takes seconds to import.
        import flashinfer

        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace.float_buffer,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=self._query_indptr,
            paged_kv_indptr_buf=self._step.indptr,
            paged_kv_indices_buf=self._step.page_ids,
            paged_kv_last_page_len_buf=self._step.last_page_len,
            backend="fa2",
        )
        wrapper.reset_workspace_buffer(self._workspace.float_buffer, self._workspace.plan_buffer)
        return wrapper


def _fill_up(batch: AttentionBatch, num_requests: int) -> AttentionBatch:
    """The batch with requests of no tokens up to `num_requests`."""
    missing = num_requests - batch.num_requests
    return AttentionBatch(
        num_contexts=num_requests,
        query_lens=batch.query_lens + [0] * missing,
        kv_lens=batch.kv_lens + [0] * missing,
        page_ids=batch.page_ids + [[]] * missing,
    )
