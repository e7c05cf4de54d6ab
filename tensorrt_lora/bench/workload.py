"""The requests of one batch: how many, how long, and which adapter each of them has.

Owns the mixes of adapters. Made by the benchmarks, submitted by `BatchRun`. Knows no engine.
"""

import math
import random
from dataclasses import dataclass
from typing import Literal

AdapterMix = Literal["identical", "distinct", "uniform", "zipf"]
"""How adapters are spread over the n requests of a batch (Punica's workloads, MLSys 2024, section 7):
identical: all have the same; distinct: each has its own; uniform: sqrt(n) adapters with equal shares; zipf: drawn from
n adapters, the k-th as often as 1 / k**1.5."""

_ZIPF_EXPONENT = 1.5


@dataclass(frozen=True, slots=True)
class Workload:
    """`concurrency` requests that are submitted at once.

    Attributes:
        isl: tokens of each prompt, random ids.
        osl: tokens that each request generates, whatever they are.
        concurrency: requests in the batch.
        mix: how adapters are spread over them.
        max_adapters: bounds the adapters of the mix; None leaves it to the mix.
        seed: of prompts and draws.
    """

    isl: int
    osl: int
    concurrency: int
    mix: AdapterMix = "identical"
    max_adapters: int | None = None
    seed: int = 0

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Token ids of each request's prompt; equal workloads have equal prompts."""
        rng = random.Random(self.seed)
        return [[rng.randrange(vocab_size) for _ in range(self.isl)] for _ in range(self.concurrency)]

    def adapter_ids(self) -> list[int]:
        """The adapter of each request, counted from 0."""
        available = self._available_adapters()
        if self.mix != "zipf":
            return [request % available for request in range(self.concurrency)]
        weights = [rank**-_ZIPF_EXPONENT for rank in range(1, available + 1)]
        drawn = random.Random(self.seed).choices(range(available), weights, k=self.concurrency)
        # Numbered by first use, so that `num_adapters` slots hold them all.
        numbers = {adapter: number for number, adapter in enumerate(dict.fromkeys(drawn))}
        return [numbers[adapter] for adapter in drawn]

    @property
    def num_adapters(self) -> int:
        """Distinct adapters in the batch."""
        return len(set(self.adapter_ids()))

    def _available_adapters(self) -> int:
        by_mix = {
            "identical": 1,
            "distinct": self.concurrency,
            "uniform": math.ceil(math.sqrt(self.concurrency)),
            "zipf": self.concurrency,
        }
        return min(by_mix[self.mix], self.max_adapters or self.concurrency)
