"""How long calls take inside a CUDA graph, where the host plays no part."""

import statistics
from collections.abc import Callable, Sequence

import torch

_REPLAYS = 10
_REPEATS = 3


def time_in_graph(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Seconds of one call on average: median over a few timings of replays of all `calls`, captured in order.

    The calls should touch memory of their own, more in all than the caches hold, or the caches are measured.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        graph.replay()
        seconds = statistics.median(_time_replays(graph) for _ in range(_REPEATS))
    torch.cuda.current_stream(device).wait_stream(stream)
    return seconds / len(calls)


def _time_replays(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / _REPLAYS
