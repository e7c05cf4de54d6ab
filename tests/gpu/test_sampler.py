"""The sampler on CUDA: the CPU's tokens, and no host sync before `fetch`."""

import random

import pytest
import torch

from tensorrt_lora.engine.counter_rng import derive_seed, uniform
from tensorrt_lora.engine.sampler import Sampler
from tests.support.llm_requests import make_request

pytestmark = pytest.mark.gpu
VOCAB = 5000


def random_request(rng):
    sampling = {
        "temperature": rng.choice([0.0, 0.5, 1.0, 2.5]),
        "top_k": rng.choice([0, 0, 50]),
        "top_p": rng.choice([1.0, 0.9]),
        "min_p": rng.choice([0.0, 0.05]),
        "repetition_penalty": rng.choice([1.0, 1.4]),
        "frequency_penalty": rng.choice([0.0, 0.7]),
        "min_tokens": rng.choice([0, 9]),
        "logprobs": rng.choice([None, 3]),
    }
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))]
    return make_request(
        prompt, output=(7, 8, 8), seed=derive_seed(rng.randrange(999)), eos_token_ids=(5,), max_tokens=99, **sampling
    )


@pytest.mark.parametrize("count", [1, 33])
def test_tokens_and_logprobs_equal_the_cpu(count):
    rng = random.Random(count)
    rows = [random_request(rng) for _ in range(count)]
    logits = torch.randn(count, VOCAB) * 3
    ours, expected = Sampler().sample(logits.cuda(), rows), Sampler().sample(logits, rows)
    for here, there in zip(ours, expected, strict=True):
        assert here.token_id == there.token_id and here.error is None
        assert (here.logprobs is None) == (there.logprobs is None)
        for token_id, entry in (there.logprobs or {}).items():
            assert here.logprobs[token_id].rank == entry.rank
            assert abs(here.logprobs[token_id].logprob - entry.logprob) < 1e-4


@pytest.mark.parametrize("count", [1, 33])
def test_a_row_does_not_depend_on_its_neighbours(count):
    rng = random.Random(count)
    rows = [random_request(rng) for _ in range(count)]
    logits = (torch.randn(count, VOCAB) * 3).cuda()
    together = Sampler().sample(logits, rows)
    for index, row in enumerate(rows):
        assert Sampler().sample(logits[index : index + 1], [row])[0].token_id == together[index].token_id
    assert Sampler().sample(logits, rows) == together


@pytest.mark.parametrize("greedy", [True, False])
def test_launch_does_not_wait_for_the_device(greedy):
    rng = random.Random(0)
    rows = [make_request(3) if greedy else random_request(rng) for _ in range(16)]
    logits = torch.randn(16, VOCAB, device="cuda", dtype=torch.bfloat16)
    Sampler().sample(logits, rows)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = Sampler().launch(logits, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(pending.fetch()) == 16


def test_uniforms_equal_the_cpu_bit_for_bit():
    seeds = torch.randint(-(2**63), 2**63 - 1, (1000,))
    counters = torch.arange(1000)
    assert torch.equal(uniform(seeds.cuda(), counters.cuda()).cpu(), uniform(seeds, counters))


def test_a_row_that_is_not_finite_fails_alone():
    logits = torch.randn(3, VOCAB, device="cuda")
    rows = [make_request(4, temperature=1.0, top_p=0.9, seed=index) for index in range(3)]
    clean = Sampler().sample(logits, rows)
    logits[1, 77] = float("nan")
    results = Sampler().sample(logits, rows)
    assert results[1].error is not None and [results[0], results[2]] == [clean[0], clean[2]]
