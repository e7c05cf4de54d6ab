"""Prompts and adapters of a batch."""

from collections import Counter

import pytest

from tensorrt_lora.bench.workload import AdapterMix, Workload


def make(mix: AdapterMix, concurrency: int, max_adapters: int | None = None, seed: int = 0) -> Workload:
    return Workload(16, 8, concurrency, mix, max_adapters, seed)


@pytest.mark.parametrize(
    ("mix", "concurrency", "max_adapters", "shares"),
    [
        ("identical", 8, None, [8]),
        ("identical", 8, 4, [8]),
        ("distinct", 8, None, [1] * 8),
        ("distinct", 8, 3, [3, 3, 2]),
        ("distinct", 2, 8, [1, 1]),
        ("uniform", 64, None, [8] * 8),
        ("uniform", 8, None, [3, 3, 2]),
        ("uniform", 64, 2, [32, 32]),
        ("zipf", 1, None, [1]),
    ],
)
def test_shares(mix: AdapterMix, concurrency: int, max_adapters: int | None, shares: list[int]) -> None:
    workload = make(mix, concurrency, max_adapters)
    counts = Counter(workload.adapter_ids())
    assert [counts[adapter] for adapter in range(len(shares))] == shares
    assert sum(counts.values()) == concurrency
    assert workload.num_adapters == len(shares)


def test_zipf_is_skewed_and_numbers_its_adapters_without_gaps() -> None:
    ids = make("zipf", 256).adapter_ids()
    counts = Counter(ids)
    assert set(counts) == set(range(len(counts)))
    most = counts.most_common()
    # 1 / zeta(1.5) = 0.38 of all draws go to the most popular adapter.
    assert 0.28 * 256 < most[0][1] < 0.48 * 256
    assert 10 < len(counts) < 100
    assert make("zipf", 256, max_adapters=4).num_adapters == 4


def test_zipf_depends_on_the_seed_alone() -> None:
    assert make("zipf", 32).adapter_ids() == make("zipf", 32).adapter_ids()
    assert make("zipf", 32).adapter_ids() != make("zipf", 32, seed=1).adapter_ids()


def test_prompts() -> None:
    workload = make("identical", 3)
    prompts = workload.prompts(vocab_size=100)
    assert [len(prompt) for prompt in prompts] == [16, 16, 16]
    assert all(0 <= token < 100 for prompt in prompts for token in prompt)
    assert len(set(map(tuple, prompts))) == 3
    assert workload.prompts(vocab_size=100) == prompts
