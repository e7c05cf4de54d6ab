"""One scheduled step in host integers: what the embedding, attention and LoRA are told, with a graph's padding.

Made by `PyTorchModelEngine` from requests. Knows neither tensors nor graphs, only how many rows a step is padded to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.attention_backend.interface import AttentionBatch
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.scheduled_requests import ContextChunk

PADDING_PAGE = 0


@dataclass(slots=True)
class StepBatch:
    """Rows of prefill chunks, then one for each generation, then padding.

    Attributes:
        input_ids: int64 [T]; 0 in padding rows.
        adapters, query_lens: per request, without padding.
        num_padding_tokens: rows at the end that no request owns.
        attention: T tokens, padding included.
    """

    input_ids: np.ndarray
    adapters: list[AdapterHandle | None]
    query_lens: list[int]
    num_padding_tokens: int
    attention: AttentionBatch

    @classmethod
    def eager(cls, chunks: Sequence[ContextChunk], generation: Sequence[LlmRequest]) -> "StepBatch":
        """The step as it is."""
        return cls._create(chunks, generation)

    @classmethod
    def decode(cls, generation: Sequence[LlmRequest], batch_size: int) -> "StepBatch":
        """Generations, padded with requests of one token on the reserved page."""
        batch = cls._create((), generation)
        batch._pad([1] * (batch_size - len(generation)))
        return batch

    @classmethod
    def prefill(cls, chunks: Sequence[ContextChunk], generation: Sequence[LlmRequest], num_tokens: int) -> "StepBatch":
        """All rows as those of contexts; one more context on the reserved page owns all padding.

        So every row of every kernel has an owner, and the step has no part whose size a graph would have to know.
        """
        batch = cls._create(chunks, generation)
        padding = num_tokens - len(batch.input_ids)
        if padding > 0:
            batch._pad([padding])
        batch.attention.num_contexts = batch.attention.num_requests
        return batch

    @classmethod
    def padding(cls, num_tokens: int, *, mixed: bool) -> "StepBatch":
        """A context of padding, and if `mixed` a generation: together at least two tokens."""
        batch = cls._create((), ())
        batch._pad([num_tokens - 1, 1] if mixed else [num_tokens])
        batch.attention.num_contexts = 1
        return batch

    @property
    def position_ids(self) -> np.ndarray:
        """Position of every token, int64 [T]; 0 in padding rows, which may be more than the model has positions."""
        spans = [
            np.arange(kv_len - query_len, kv_len, dtype=np.int64)
            for query_len, kv_len in zip(self.query_lens, self.attention.kv_lens, strict=False)
        ]
        return np.concatenate([*spans, np.zeros(self.num_padding_tokens, dtype=np.int64)])

    @classmethod
    def _create(cls, chunks: Sequence[ContextChunk], generation: Sequence[LlmRequest]) -> "StepBatch":
        requests = [*(chunk.request for chunk in chunks), *generation]
        query_lens = [*(chunk.length for chunk in chunks), *(1 for _ in generation)]
        input_ids = [token for chunk in chunks for token in chunk.token_ids]
        input_ids += [request.output_token_ids[-1] for request in generation]
        return cls(
            input_ids=np.array(input_ids, dtype=np.int64),
            adapters=[request.adapter for request in requests],
            query_lens=query_lens,
            num_padding_tokens=0,
            attention=AttentionBatch(
                num_contexts=len(chunks),
                query_lens=list(query_lens),
                kv_lens=[*(chunk.stop for chunk in chunks), *(request.num_tokens for request in generation)],
                page_ids=[request.page_ids for request in requests],
            ),
        )

    def _pad(self, query_lens: list[int]) -> None:
        """Requests of padding; each has as many pages as it could have tokens, all of them the same page."""
        padding = sum(query_lens)
        self.num_padding_tokens += padding
        self.input_ids = np.concatenate([self.input_ids, np.zeros(padding, dtype=np.int64)])
        self.attention.query_lens += query_lens
        self.attention.kv_lens += query_lens
        self.attention.page_ids += [[PADDING_PAGE] * length for length in query_lens]
