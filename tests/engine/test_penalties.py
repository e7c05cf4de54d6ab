"""Penalties and masks as the sampler sees them: built from requests, applied to scores."""

import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from tensorrt_lora.engine.penalties import apply_penalties
from tensorrt_lora.engine.sampling_batch import masked_entries, penalty_entries
from tests.support.llm_requests import append_token, make_request

VOCAB = 50
CPU = torch.device("cpu")


def penalised(requests, scores):
    result = scores.clone()
    entries = penalty_entries(requests, CPU)
    if entries is not None:
        apply_penalties(result, entries)
    return result


def random_request(length, *, num_output, **sampling):
    tokens = torch.randint(VOCAB, (length + num_output,)).tolist()
    return make_request(tokens[:length], output=tuple(tokens[length:]), max_tokens=99, **sampling)


def test_repetition_penalty_equals_transformers_over_prompt_and_output():
    requests = [random_request(9, num_output=n, repetition_penalty=p) for n, p in [(0, 1.3), (12, 0.7), (30, 2.0)]]
    scores = torch.randn(3, VOCAB) * 5
    result = penalised(requests, scores)
    for row, request in enumerate(requests):
        processor = RepetitionPenaltyLogitsProcessor(request.sampling_params.repetition_penalty)
        assert torch.equal(result[row], processor(torch.tensor([request.token_ids]), scores[row][None])[0])


def test_presence_and_frequency_count_the_output_alone():
    request = make_request([1, 1, 2], output=(2, 3, 3, 3), max_tokens=9, presence_penalty=0.5, frequency_penalty=0.25)
    scores = torch.randn(1, VOCAB)
    expected = scores.clone()
    expected[0, 2] -= 0.5 + 0.25
    expected[0, 3] -= 0.5 + 3 * 0.25
    torch.testing.assert_close(penalised([request], scores), expected, rtol=0, atol=1e-6)


def test_negative_penalties_favour_what_was_said():
    request = make_request([1], output=(2,), max_tokens=9, presence_penalty=-1.0)
    assert penalised([request], torch.zeros(1, 4))[0].tolist() == [0.0, 0.0, 1.0, 0.0]


def test_repetition_comes_before_presence_and_frequency():
    request = make_request(
        [1], output=(2,), max_tokens=9, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=1.0
    )
    scores = torch.tensor([[4.0, 4.0, 4.0, -4.0]])
    assert penalised([request], scores)[0].tolist() == [4.0, 2.0, 2.0 - 1.5, -4.0]


def test_each_row_has_its_own_penalties():
    requests = [
        random_request(5, num_output=4),
        random_request(5, num_output=4, repetition_penalty=1.5),
        random_request(5, num_output=0, presence_penalty=1.0),
        random_request(5, num_output=6, frequency_penalty=0.3, presence_penalty=0.2),
    ]
    scores = torch.randn(4, VOCAB)
    together = penalised(requests, scores)
    for row, request in enumerate(requests):
        assert torch.equal(together[row], penalised([request], scores[row][None])[0])
    assert torch.equal(together[0], scores[0]) and torch.equal(together[2], scores[2])


def test_nothing_is_built_for_rows_without_penalties():
    assert penalty_entries([make_request(3, output=(1,))], CPU) is None
    assert penalty_entries([make_request(3, presence_penalty=1.0)], CPU) is None  # no output yet
    assert masked_entries([make_request(3, stop_token_ids=[4])], VOCAB, CPU) is None


def masked_ids(request):
    entries = masked_entries([request], VOCAB, CPU)
    return set() if entries is None else set(entries[1].tolist())


def test_end_and_stop_tokens_are_masked_until_min_tokens_are_out():
    request = make_request(3, eos_token_ids=(2, 7), stop_token_ids=[4, VOCAB, 10**9], min_tokens=2, max_tokens=9)
    assert masked_ids(request) == {2, 4, 7}
    append_token(request, 1)
    assert masked_ids(request) == {2, 4, 7}
    append_token(request, 1)
    assert masked_ids(request) == set()


def test_an_ignored_end_token_is_not_masked():
    request = make_request(3, eos_token_ids=(2,), stop_token_ids=[4], ignore_eos=True, min_tokens=2)
    assert masked_ids(request) == {4}
