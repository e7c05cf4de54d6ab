import pytest
import torch

from tensorrt_lora.engine.prompt_logprobs import extend_prompt_logprobs
from tests.support.llm_requests import make_request

VOCAB = 30


def make(length, top=2):
    return make_request(torch.randint(VOCAB, (length,)).tolist(), prompt_logprobs=top), torch.randn(length, VOCAB)


def feed(request, logits, start, stop):
    positions = request.prompt_logprob_positions(start, stop)
    if positions:
        assert extend_prompt_logprobs(request, positions, logits[positions.start : positions.stop]) is None


def check(request, logits):
    expected = logits.float().double().log_softmax(-1)
    assert len(request.prompt_logprobs) == request.num_prompt_tokens
    assert request.prompt_logprobs[0] is None
    for position in range(1, request.num_prompt_tokens):
        entries = request.prompt_logprobs[position]
        token_id = request.prompt_token_ids[position]
        best = expected[position - 1].topk(2).indices.tolist()
        assert list(entries) == [token_id] + [other for other in best if other != token_id]
        assert abs(entries[token_id].logprob - expected[position - 1, token_id].item()) < 1e-5
        assert entries[token_id].rank == 1 + (expected[position - 1] > expected[position - 1, token_id]).sum()


@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_of_any_length_give_the_same_list(chunk, dtype):
    request, logits = make(17)
    logits = logits.to(dtype)
    for start in range(0, 17, chunk):
        feed(request, logits, start, min(start + chunk, 17))
    check(request, logits)


def test_a_prefill_repeated_after_preemption_changes_nothing():
    request, logits = make(12)
    feed(request, logits, 0, 5)
    feed(request, logits, 0, 8)
    feed(request, logits, 8, 12)
    feed(request, logits, 0, 12)
    check(request, logits)


def test_a_row_that_is_not_finite_is_an_error_that_names_the_token():
    request, logits = make(6)
    logits[3, 7] = float("nan")
    error = extend_prompt_logprobs(request, range(0, 5), logits[:5])
    assert error == (
        f"request {request.request_id}: the logits for position 4 are not finite; the base model gave NaN or "
        f"infinite values"
    )
