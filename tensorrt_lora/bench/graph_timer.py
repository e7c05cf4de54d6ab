"""How long calls take inside a CUDA graph, where the host plays no part."""

import math
import statistics
from collections.abc import Callable, Sequence

import torch

_SAMPLE_SECONDS = 1.5e-3  # many times what the first launch of a sample may lag behind
_REPEATS = 3


class TimedGraph:
    """Calls captured in order, to be replayed and timed.

    The calls should touch memory of their own, more in all than the caches hold, or the caches are measured. Every call
    is made once before, which may compile it, with whatever it raises.
    """

    def __init__(self, calls: Sequence[Callable[[], object]], device: torch.device) -> None:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for call in calls:
                call()
            torch.cuda.synchronize(device)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream):
                for call in calls:
                    call()
        torch.cuda.current_stream(device).wait_stream(stream)
        self._calls = tuple(calls)  # a graph does not keep the memory that its kernels were given
        self._replays = max(1, math.ceil(_SAMPLE_SECONDS / self._time(replays=1)))

    def sample(self) -> float:
        """Seconds of one call, on average over some replays."""
        return self._time(self._replays) / len(self._calls)

    def _time(self, replays: int) -> float:
        """Seconds of a replay behind another one, which hides its launch and clears the caches."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._graph.replay()
        start.record()
        for _ in range(replays):
            self._graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / replays


def time_in_turn(graphs: Sequence[TimedGraph], repeats: int) -> list[float]:
    """Seconds of a call of each graph: medians of samples taken in turn, so that what drifts hits all alike."""
    rounds = [[graph.sample() for graph in graphs] for _ in range(repeats)]
    return [statistics.median(samples) for samples in zip(*rounds, strict=True)]


def time_in_graph(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Seconds of one call on average: median over a few timings of replays of all `calls`, captured in order."""
    return time_in_turn([TimedGraph(calls, device)], _REPEATS)[0]
