"""A chain of ops as a captured graph, against the same results computed eagerly."""

from collections.abc import Callable

import torch
from torch import Tensor


def replay_equals(chain: Callable[[], Tensor], expected: Callable[[], Tensor], x: Tensor, seeds: int = 50) -> None:
    """Capture `chain`, which reads `x`, and compare each replay with `expected`, run eagerly, for many inputs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        chain()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = chain()
        for seed in range(seeds):
            x.normal_(generator=torch.Generator(x.device).manual_seed(seed))
            graph.replay()
            replayed = result.clone()
            assert torch.equal(replayed, expected()), seed
