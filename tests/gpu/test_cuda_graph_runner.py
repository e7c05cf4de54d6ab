"""CUDAGraphRunner on a GPU: order, shared output, second stream, replays with changed inputs."""

import pytest
import torch

from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig
from tensorrt_lora.engine.cuda_graph_runner import CUDAGraphRunner, GraphKey
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plans import LoraPlans
from tensorrt_lora.utils.multi_stream_utils import (
    create_aux_stream,
    create_event_pair,
    do_multi_stream,
    maybe_execute_in_parallel,
    with_multi_stream,
)

BESIDE = LoraPlans(LoraPlan.BOTH_BESIDE)
pytestmark = pytest.mark.gpu

SIZES = [1, 4, 8]
HIDDEN = 256


class Forward:
    """x @ base, and for keys with LoRA x @ lora on a second stream, into a buffer from outside the graphs."""

    def __init__(self, device: torch.device) -> None:
        self.x = torch.zeros(max(SIZES), HIDDEN, device=device, dtype=torch.bfloat16)
        self.base = torch.randn(HIDDEN, HIDDEN, device=device, dtype=torch.bfloat16) / 16
        self.lora = torch.randn(HIDDEN, HIDDEN, device=device, dtype=torch.bfloat16) / 16
        self.delta = torch.empty_like(self.x)
        self.aux_stream = create_aux_stream(device)
        self.events = create_event_pair()
        self.prepared: list[GraphKey] = []
        self.calls: list[tuple[GraphKey, bool, bool]] = []  # key, capturing, second stream allowed

    def prepare(self, key: GraphKey) -> None:
        assert not torch.cuda.is_current_stream_capturing()
        self.prepared.append(key)

    def __call__(self, key: GraphKey) -> torch.Tensor:
        self.calls.append((key, torch.cuda.is_current_stream_capturing(), do_multi_stream()))
        x, delta = self.x[: key.batch_size], self.delta[: key.batch_size]
        if key.plan is None:
            return x @ self.base
        output, _ = maybe_execute_in_parallel(
            lambda: x @ self.base,
            lambda: torch.matmul(x, self.lora, out=delta),
            *self.events,
            self.aux_stream,
        )
        return output + delta


def keys() -> list[GraphKey]:
    return [GraphKey(size, plan) for size in SIZES for plan in (None, BESIDE)]


@pytest.fixture
def forward(device: torch.device) -> Forward:
    return Forward(device)


@pytest.fixture
def runner(forward: Forward, device: torch.device) -> CUDAGraphRunner:
    runner = CUDAGraphRunner(CudaGraphConfig(batch_sizes=SIZES), max(SIZES), device=device)
    runner.capture(keys(), forward.prepare, forward, progress=False)
    return runner


def test_captures_largest_first_and_lora_before_base(runner: CUDAGraphRunner, forward: Forward) -> None:
    order = [GraphKey(size, plan) for size in (8, 4, 1) for plan in (BESIDE, None)]
    assert forward.prepared == order
    assert [key for key, capturing, _ in forward.calls if capturing] == order
    assert list(runner.graph_memory) == order


def test_every_capture_is_warmed_up_with_the_second_stream_allowed(runner: CUDAGraphRunner, forward: Forward) -> None:
    for key in keys():
        calls = [(capturing, parallel) for called, capturing, parallel in forward.calls if called == key]
        assert calls == [(False, True), (False, True), (True, True)]
    assert not do_multi_stream()


def test_replay_equals_eager_bit_for_bit(runner: CUDAGraphRunner, forward: Forward) -> None:
    for key in [*keys(), *reversed(keys())]:
        forward.x.normal_()
        output = runner.replay(key).clone()
        with torch.inference_mode():
            sequential = forward(key)
            with with_multi_stream(True):
                parallel = forward(key)
        assert output.shape == (key.batch_size, HIDDEN)
        assert torch.equal(output, sequential) and torch.equal(output, parallel)


def test_all_graphs_write_the_same_output(runner: CUDAGraphRunner) -> None:
    assert len({runner.replay(key).data_ptr() for key in keys()}) == 1


def test_replays_allocate_nothing(runner: CUDAGraphRunner) -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for key in keys() * 20:
        runner.replay(key)
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_memory_and_time_are_reported(runner: CUDAGraphRunner) -> None:
    assert all(memory >= 0 for memory in runner.graph_memory.values())
    assert sum(runner.graph_memory.values()) < 2**30
    assert runner.capture_seconds > 0


def test_captures_once(runner: CUDAGraphRunner, forward: Forward) -> None:
    with pytest.raises(AssertionError, match="capture is called once"):
        runner.capture(keys(), forward.prepare, forward, progress=False)
