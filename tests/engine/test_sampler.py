import random

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tensorrt_lora.engine.counter_rng import derive_seed
from tensorrt_lora.engine.sampler import Sampler
from tests.support.llm_requests import FakeAdapter, append_token, make_request

VOCAB = 64
EOS = 5


def sample(logits, rows):
    return Sampler().sample(logits, rows)


def tokens(logits, rows):
    samples = sample(logits, rows)
    assert all(result.error is None for result in samples)
    return [result.token_id for result in samples]


def random_request(rng):
    """Any mix of settings, with some history."""
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
    output = tuple(rng.randrange(6, VOCAB) for _ in range(rng.randint(0, 8)))
    sampling = {
        "temperature": rng.choice([0.0, 0.3, 1.0, 2.5]),
        "top_k": rng.choice([0, 0, 1, 7, 1000]),
        "top_p": rng.choice([1.0, 1.0, 0.5, 0.9]),
        "min_p": rng.choice([0.0, 0.0, 0.1]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.4]),
        "presence_penalty": rng.choice([0.0, 0.0, 0.7]),
        "frequency_penalty": rng.choice([0.0, 0.0, 0.7]),
        "min_tokens": rng.choice([0, 0, 9]),
        "logprobs": rng.choice([None, None, 0, 3]),
    }
    return make_request(
        prompt,
        output=output,
        seed=derive_seed(rng.randrange(100)),
        eos_token_ids=(EOS,),
        max_tokens=99,
        **sampling,
    )


# Greedy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_is_argmax_with_and_without_the_short_path(dtype):
    logits = torch.randn(6, VOCAB).to(dtype)
    expected = logits.argmax(-1).tolist()
    rows = [make_request(3) for _ in range(6)]
    assert tokens(logits, rows) == expected
    rows[2] = make_request(3, temperature=1.0)
    long_path = tokens(logits, rows)
    assert long_path[:2] + long_path[3:] == expected[:2] + expected[3:]
    assert tokens(logits, [make_request(3, logprobs=0) for _ in range(6)]) == expected


def test_an_empty_step_samples_nothing():
    assert sample(torch.empty(0, VOCAB), []) == []


def test_logits_are_left_as_they_are():
    logits = torch.randn(2, VOCAB)
    before = logits.clone()
    rows = [
        make_request(3, temperature=1.0, top_k=3, repetition_penalty=2.0),
        make_request(3, eos_token_ids=(EOS,), min_tokens=2),
    ]
    sample(logits, rows)
    assert torch.equal(logits, before)


def test_greedy_respects_penalties_and_min_tokens():
    logits = torch.zeros(3, VOCAB)
    logits[:, EOS], logits[:, 8], logits[:, 9] = 4.0, 3.0, 2.0
    rows = [
        make_request(1, eos_token_ids=(EOS,)),
        make_request(1, eos_token_ids=(EOS,), min_tokens=1),
        make_request([8], eos_token_ids=(EOS,), min_tokens=1, repetition_penalty=2.0),
    ]
    assert tokens(logits, rows) == [EOS, 8, 9]
    append_token(rows[1], 8)
    assert tokens(logits[1:2], rows[1:2]) == [EOS]


# Random


def draws(logits, count, **sampling):
    """`count` draws from one row of logits, each as a request of its own."""
    rows = [make_request(3, seed=derive_seed(1, index), **sampling) for index in range(count)]
    return torch.bincount(torch.tensor(tokens(logits.expand(count, -1), rows)), minlength=logits.shape[-1])


def chi_square(observed, probabilities):
    likely = probabilities > 0
    assert observed[~likely].sum() == 0
    expected = probabilities[likely] * observed.sum()
    return ((observed[likely] - expected) ** 2 / expected).sum().item(), int(likely.sum()) - 1


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.7},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 2.0, "top_k": 10, "top_p": 0.8, "min_p": 0.1},
    ],
)
def test_draws_follow_transformers_distribution(sampling):
    logits = torch.randn(12) * 1.5
    scores = logits[None]
    no_ids = torch.empty(1, 0, dtype=torch.int64)
    warpers = [TemperatureLogitsWarper(sampling["temperature"])]
    warpers += [TopKLogitsWarper(sampling["top_k"])] if "top_k" in sampling else []
    warpers += [TopPLogitsWarper(sampling["top_p"])] if "top_p" in sampling else []
    warpers += [MinPLogitsWarper(sampling["min_p"])] if "min_p" in sampling else []
    for warper in warpers:
        scores = warper(no_ids, scores)
    statistic, freedom = chi_square(draws(logits, 6000, **sampling), scores[0].softmax(-1))
    assert statistic < freedom + 5 * (2 * freedom + 1) ** 0.5


def test_a_drawn_token_comes_from_penalised_scores():
    logits = torch.zeros(VOCAB)
    logits[[10, 11]] = 60.0
    prompt = [10, 3]
    rows = [
        make_request(prompt, seed=derive_seed(index), temperature=1.0, repetition_penalty=2.0) for index in range(50)
    ]
    assert set(tokens(logits.expand(50, -1), rows)) == {11}
    processed = RepetitionPenaltyLogitsProcessor(2.0)(torch.tensor([prompt]), logits[None])
    assert processed[0].argmax() == 11


@pytest.mark.parametrize("temperature", [1e-6, 1e-12, 1e-300, 5e-324])
def test_the_smallest_temperatures_are_greedy(temperature):
    logits = torch.randn(20, VOCAB) * 100
    rows = [make_request(3, temperature=temperature, seed=derive_seed(i), top_p=0.9, top_k=9) for i in range(20)]
    assert tokens(logits, rows) == logits.argmax(-1).tolist()


def test_huge_logits_and_temperatures_stay_in_the_vocabulary():
    logits = torch.randn(20, VOCAB) * 1e37
    rows = [make_request(3, temperature=[1e-9, 1e30][i % 2], seed=derive_seed(i)) for i in range(20)]
    assert all(0 <= token < VOCAB for token in tokens(logits, rows))


def test_a_draw_depends_on_seed_and_position_alone():
    logits = torch.randn(1, VOCAB)
    request = make_request([1, 2, 3], output=(4, 5), temperature=1.5, seed=77, max_tokens=9)
    elsewhere = make_request([9, 9, 9, 9, 9], temperature=1.5, seed=77, max_tokens=9)
    assert tokens(logits, [request]) == tokens(logits, [elsewhere]) == tokens(logits, [request])
    at_positions = [tokens(logits, [make_request(length, temperature=1.5, seed=77)])[0] for length in range(1, 60)]
    assert len(set(at_positions)) > 15
    by_seed = [tokens(logits, [make_request(3, temperature=1.5, seed=derive_seed(s))])[0] for s in range(60)]
    assert len(set(by_seed)) > 15


def test_a_row_does_not_depend_on_its_neighbours():
    rng = random.Random(0)
    for _ in range(60):
        count = rng.randint(2, 9)
        rows = [random_request(rng) for _ in range(count)]
        logits = torch.randn(count, VOCAB) * 3
        together = sample(logits, rows)
        alone = [sample(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
        order = rng.sample(range(count), count)
        shuffled = sample(logits[order], [rows[index] for index in order])
        for place, index in enumerate(order):
            assert shuffled[place] == together[index] == alone[index]


# Log-probabilities


def test_logprobs_are_of_the_raw_logits():
    logits = torch.randn(2, VOCAB)
    expected = logits.log_softmax(-1)
    rows = [
        make_request([1, 2], temperature=0.2, top_k=4, repetition_penalty=3.0, logprobs=2, seed=3),
        make_request([1, 2], logprobs=0),
    ]
    first, second = sample(logits, rows)
    assert next(iter(first.logprobs)) == first.token_id
    assert list(second.logprobs) == [second.token_id] == [logits[1].argmax().item()]
    assert second.logprobs[second.token_id].rank == 1
    for index, result in enumerate((first, second)):
        for token_id, entry in result.logprobs.items():
            assert abs(entry.logprob - expected[index, token_id].item()) < 1e-5


def test_logprobs_only_for_rows_that_ask():
    results = sample(torch.randn(3, VOCAB), [make_request(2), make_request(2, logprobs=1), make_request(2)])
    assert [result.logprobs is None for result in results] == [True, False, True]


# Rows that fail


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sampling", [{}, {"logprobs": 2}, {"temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1}]
)
def test_a_row_that_is_not_finite_fails_alone(bad, everywhere, dtype, sampling):
    logits = torch.randn(3, VOCAB).to(dtype)
    rows = [make_request(4, adapter=FakeAdapter(12), **sampling) for _ in range(3)]
    clean = sample(logits, rows)
    logits[1, slice(None) if everywhere else 9] = bad
    results = sample(logits, rows)
    assert results[1].error == (
        f"request {rows[1].request_id}: the logits for position 4 are not finite; adapter id 12 gave NaN or "
        f"infinite values"
    )
    assert 0 <= results[1].token_id < VOCAB
    assert [results[0], results[2]] == [clean[0], clean[2]]


def test_masking_the_whole_vocabulary_does_not_leave_it():
    rows = [make_request(3, stop_token_ids=list(range(VOCAB)), min_tokens=2, temperature=t) for t in (0.0, 1.0)]
    assert all(0 <= token < VOCAB for token in tokens(torch.randn(2, VOCAB), rows))
