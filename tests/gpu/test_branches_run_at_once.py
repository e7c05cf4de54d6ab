"""The two branches of `maybe_execute_in_parallel` run at the same time, eagerly and in a captured graph.

With kernels of known length in both, the pair takes about as long as the longer one. The only test that looks at time.
"""

import statistics
from collections.abc import Callable

import pytest
import torch

from tensorrt_lora.utils.multi_stream_utils import (
    create_aux_stream,
    create_event_pair,
    maybe_execute_in_parallel,
    with_multi_stream,
)

pytestmark = pytest.mark.gpu

CYCLES = 2_000_000  # about a millisecond: far above the cost of launches, forks and joins on the host


def milliseconds(run: Callable[[], object]) -> float:
    """Median duration on the device over 20 runs."""
    times = []
    for _ in range(23):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


def captured(run: Callable[[], object]) -> Callable[[], object]:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize(("base", "lora"), [(CYCLES, CYCLES), (2 * CYCLES, CYCLES), (CYCLES, 2 * CYCLES)])
def test_the_pair_takes_about_as_long_as_the_longer_branch(device: torch.device, base: int, lora: int, in_graph: bool):
    aux_stream, events = create_aux_stream(device), create_event_pair()

    def pair() -> None:
        maybe_execute_in_parallel(lambda: torch.cuda._sleep(base), lambda: torch.cuda._sleep(lora), *events, aux_stream)

    prepare = captured if in_graph else (lambda run: run)
    with with_multi_stream(True):
        together = milliseconds(prepare(pair))
    with with_multi_stream(False):
        one_by_one = milliseconds(prepare(pair))
    longer = milliseconds(prepare(lambda: torch.cuda._sleep(max(base, lora))))
    assert together < 1.2 * longer, f"{together:.3f} ms together, {longer:.3f} ms for the longer branch"
    assert one_by_one > 0.9 * (base + lora) / max(base, lora) * longer, "off, the branches must follow one another"
