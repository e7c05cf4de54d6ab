"""The requests of a stream: when each arrives, how long it is, and which adapter it has.

Owns the draws. Made by `ThroughputOptions`, sent by `ThroughputRun`. Knows no engine.
"""

import random
from dataclasses import dataclass

from tensorrt_lora.bench.workload import AdapterMix, Workload

_SHORTEST_OUTPUT = 2  # tokens; one has no inter-token latency


@dataclass(frozen=True, slots=True)
class StreamedRequest:
    """One request: its prompt (token ids), the tokens that it generates, and its adapter, counted from 0."""

    prompt: list[int]
    num_tokens: int
    adapter: int


@dataclass(frozen=True, slots=True)
class ThroughputWorkload:
    """A stream of requests; equal workloads give equal streams, and each draw has random numbers of its own.

    Attributes:
        isl: tokens of a prompt on average, random ids.
        osl: tokens that a request generates on average, whatever they are.
        length_spread: lengths are drawn evenly from the average less and plus this share of it.
        mix: how adapters are spread over all requests.
        max_adapters: bounds the adapters of the mix.
        seed: of all draws.
    """

    isl: int
    osl: int
    length_spread: float
    num_requests: int
    mix: AdapterMix = "identical"
    max_adapters: int | None = None
    seed: int = 0

    @property
    def max_isl(self) -> int:
        return self._range(self.isl, 1)[1]

    @property
    def max_osl(self) -> int:
        return self._range(self.osl, _SHORTEST_OUTPUT)[1]

    @property
    def num_adapters(self) -> int:
        """Distinct adapters of the stream."""
        return self.batch(self.num_requests).num_adapters

    def batch(self, concurrency: int) -> Workload:
        """A batch of the longest requests, for sizing and trials."""
        return Workload(self.max_isl, self.max_osl, concurrency, self.mix, self.max_adapters, self.seed)

    def requests(self, vocab_size: int) -> list[StreamedRequest]:
        """In order of arrival."""
        lengths, tokens = random.Random(f"lengths {self.seed}"), random.Random(f"tokens {self.seed}")
        return [
            StreamedRequest(
                [tokens.randrange(vocab_size) for _ in range(lengths.randint(*self._range(self.isl, 1)))],
                lengths.randint(*self._range(self.osl, _SHORTEST_OUTPUT)),
                adapter,
            )
            for adapter in self.batch(self.num_requests).adapter_ids()
        ]

    def arrivals(self, rate: float) -> list[float]:
        """Seconds from the first request to each: a Poisson process of `rate` requests per second, or zeros for inf.

        Rates share one draw: at twice the rate everything comes in half the time.
        """
        rng = random.Random(f"arrivals {self.seed}")
        arrivals = [0.0]
        for _ in range(self.num_requests - 1):
            arrivals.append(arrivals[-1] + rng.expovariate(1.0) / rate)
        return arrivals

    def _range(self, length: int, shortest: int) -> tuple[int, int]:
        """Least and largest length around the average."""
        away = round(length * self.length_spread)
        return max(length - away, shortest), length + away
