import pytest
import torch

from tensorrt_lora.bench.graph_timer import TimedGraph, time_in_graph, time_in_turn


class FakeGraph:
    def __init__(self, name: str, samples: list[float], order: list[str]) -> None:
        self._name, self._samples, self._order = name, samples, order

    def sample(self) -> float:
        self._order.append(self._name)
        return self._samples.pop(0)


def test_medians_of_samples_taken_in_turn() -> None:
    order: list[str] = []
    graphs = [FakeGraph("a", [1.0, 9.0, 2.0], order), FakeGraph("b", [5.0, 4.0, 6.0], order)]
    assert time_in_turn(graphs, 3) == [2.0, 5.0]  # type: ignore[arg-type]
    assert order == ["a", "b"] * 3


@pytest.mark.gpu
def test_a_captured_call_takes_time() -> None:
    device = torch.device("cuda")
    x = torch.randn(1024, 1024, device=device)
    calls = [lambda: x @ x] * 3
    assert 1e-7 < time_in_graph(calls, device) < 1e-2
    with pytest.raises(RuntimeError, match="wrong"):
        TimedGraph([_fail], device)


def _fail() -> None:
    raise RuntimeError("wrong")
