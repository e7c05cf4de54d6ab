import random

import pytest
import torch

from tensorrt_lora.engine.counter_rng import derive_seed, uniform

MASK = 2**64 - 1


def splitmix64(seed, count):
    """The published generator, step by step, as its first `count` outputs."""
    state, outputs = seed & MASK, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(z ^ (z >> 31))
    return outputs


def draw(seed, counter):
    return uniform(torch.tensor([seed]), torch.tensor([counter])).item()


def test_published_first_output_of_seed_zero():
    assert splitmix64(0, 1) == [0xE220A8397B1DCDAF]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 1234567])
def test_tensor_arithmetic_equals_the_generator_at_each_counter(seed):
    expected = [(output >> 11) * 2.0**-53 for output in splitmix64(seed, 50)]
    counters = torch.arange(50)
    assert uniform(torch.full((50,), seed), counters).tolist() == expected
    assert draw(seed, 7) == expected[7]


def test_draws_fill_the_unit_interval_evenly():
    seeds = torch.tensor([derive_seed(3, index) for index in range(200)])
    draws = uniform(seeds[:, None], torch.arange(500)[None])
    assert draws.min() >= 0.0 and draws.max() < 1.0
    histogram = torch.histc(draws.flatten(), bins=20, min=0.0, max=1.0)
    # 5000 a bin, standard deviation 69
    assert (histogram - 5000).abs().max() < 5 * 69
    # Neither along the counters nor across the seeds do neighbours correlate (standard deviation 0.0032).
    centred = draws - 0.5
    assert (centred[:, 1:] * centred[:, :-1]).mean().abs() * 12 < 0.016
    assert (centred[1:] * centred[:-1]).mean().abs() * 12 < 0.016


def test_derived_seeds_are_signed_64_bit_and_depend_on_every_part():
    rng = random.Random(0)
    seeds = set()
    for _ in range(300):
        parts = [rng.choice([0, 1, 2, 2**63 - 1, 2**64 - 1, rng.getrandbits(64)]) for _ in range(3)]
        seed = derive_seed(*parts)
        assert -(2**63) <= seed < 2**63
        assert seed == derive_seed(*parts)
        for index in range(3):
            changed = list(parts)
            changed[index] ^= 1 << rng.randrange(64)
            assert derive_seed(*changed) != seed
        seeds.add(seed)
    assert len({derive_seed(a, b) for a in range(40) for b in range(40)}) == 1600
