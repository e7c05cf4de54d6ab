"""StepBatch: what a step's rows are, as they come and padded for a graph."""

import numpy as np
import pytest

from tensorrt_lora.attention_backend.interface import compute_cache_slots
from tensorrt_lora.engine.scheduled_requests import ContextChunk
from tensorrt_lora.engine.step_batch import PADDING_PAGE, StepBatch
from tests.support.llm_requests import FakeAdapter, LlmRequest, make_request

PAGE_SIZE = 4


@pytest.fixture
def step() -> tuple[list[ContextChunk], list[LlmRequest]]:
    """The middle of a prompt with an adapter, a whole prompt, and a request that has generated 2 tokens."""
    first = make_request([10, 11, 12, 13, 14, 15, 16], adapter=FakeAdapter(3))
    first.page_ids = [5, 6]
    second = make_request([20, 21])
    second.page_ids = [7]
    generating = make_request([30, 31, 32], output=(40, 41), max_tokens=9)
    generating.page_ids = [8, 9]
    return [ContextChunk(first, 2, 3), ContextChunk(second, 0, 2)], [generating]


def test_an_eager_step_has_the_rows_that_it_has(step: tuple[list[ContextChunk], list[LlmRequest]]) -> None:
    batch = StepBatch.eager(*step)
    assert batch.input_ids.tolist() == [12, 13, 14, 20, 21, 41]
    assert batch.position_ids.tolist() == [2, 3, 4, 0, 1, 4]
    assert [adapter and adapter.key.adapter_id for adapter in batch.adapters] == [3, None, None]
    assert batch.query_lens == [3, 2, 1] and batch.num_padding_tokens == 0
    attention = batch.attention
    assert (attention.num_contexts, attention.query_lens, attention.kv_lens) == (2, [3, 2, 1], [5, 2, 5])
    assert attention.page_ids == [[5, 6], [7], [8, 9]]


def test_a_padded_prefill_is_contexts_only_and_one_owns_the_padding(
    step: tuple[list[ContextChunk], list[LlmRequest]],
) -> None:
    batch, eager = StepBatch.prefill(*step, 16), StepBatch.eager(*step)
    assert batch.input_ids.tolist() == [*eager.input_ids.tolist(), *[0] * 10]
    assert batch.position_ids.tolist() == [*eager.position_ids.tolist(), *[0] * 10]
    assert batch.adapters == eager.adapters and batch.query_lens == eager.query_lens
    assert batch.num_padding_tokens == 10
    attention = batch.attention
    assert attention.num_contexts == attention.num_requests == 4 and attention.num_tokens == 16
    assert (attention.query_lens, attention.kv_lens) == ([3, 2, 1, 10], [5, 2, 5, 10])
    slots = compute_cache_slots(attention, PAGE_SIZE)
    assert np.array_equal(slots[:6], compute_cache_slots(eager.attention, PAGE_SIZE))
    assert set(slots[6:] // PAGE_SIZE) == {PADDING_PAGE}


def test_a_prefill_that_fills_its_graph_has_no_padding_request(
    step: tuple[list[ContextChunk], list[LlmRequest]],
) -> None:
    batch = StepBatch.prefill(*step, 6)
    assert batch.num_padding_tokens == 0 and batch.attention.num_requests == batch.attention.num_contexts == 3


def test_a_padded_decode_step_has_one_request_for_each_row(step: tuple[list[ContextChunk], list[LlmRequest]]) -> None:
    batch = StepBatch.decode(step[1], 3)
    assert batch.input_ids.tolist() == [41, 0, 0] and batch.position_ids.tolist() == [4, 0, 0]
    assert batch.query_lens == [1] and batch.num_padding_tokens == 2
    attention = batch.attention
    assert (attention.num_contexts, attention.query_lens, attention.kv_lens) == (0, [1, 1, 1], [5, 1, 1])
    assert attention.page_ids == [[8, 9], [PADDING_PAGE], [PADDING_PAGE]]


def test_a_graph_is_captured_with_padding_alone() -> None:
    decode, prefill = StepBatch.decode([], 2), StepBatch.prefill([], [], 5)
    assert decode.input_ids.tolist() == decode.position_ids.tolist() == [0, 0]
    assert prefill.attention.query_lens == [5] and prefill.num_padding_tokens == 5 and prefill.adapters == []
    assert prefill.position_ids.tolist() == [0] * 5


def test_a_step_of_padding_has_a_context_and_a_generation() -> None:
    assert StepBatch.padding(9, mixed=False).attention.query_lens == [9]
    batch = StepBatch.padding(9, mixed=True)
    assert batch.input_ids.tolist() == batch.position_ids.tolist() == [0] * 9
    assert (batch.adapters, batch.query_lens, batch.num_padding_tokens) == ([], [], 9)
    attention = batch.attention
    assert (attention.num_contexts, attention.query_lens, attention.kv_lens) == (1, [8, 1], [8, 1])
    assert attention.page_ids == [[PADDING_PAGE] * 8, [PADDING_PAGE]]
