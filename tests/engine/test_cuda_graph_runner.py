"""CUDAGraphRunner without a GPU: which batches have a graph, and in which order graphs are captured."""

import pytest
import torch

from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig
from tensorrt_lora.engine.cuda_graph_runner import CUDAGraphRunner, GraphKey, _capture_order
from tensorrt_lora.lora.lora_plan import LoraPlan

CPU = torch.device("cpu")
CUDA = torch.device("cuda")  # choosing a size touches no device


def test_the_cpu_has_no_graphs() -> None:
    runner = CUDAGraphRunner(CudaGraphConfig(), 8, device=CPU)
    assert not runner.enabled and runner.batch_sizes == []
    assert runner.padded_batch_size(1) is None


def test_no_config_means_no_graphs() -> None:
    runner = CUDAGraphRunner(None, 8, device=CUDA)
    assert not runner.enabled and runner.batch_sizes == []
    assert runner.padded_batch_size(1) is None


def test_batches_are_padded_to_the_next_captured_size() -> None:
    runner = CUDAGraphRunner(CudaGraphConfig(batch_sizes=[1, 8, 4]), 64, device=CUDA)
    assert runner.enabled and runner.batch_sizes == [1, 4, 8]
    padded = {size: runner.padded_batch_size(size) for size in (1, 2, 4, 5, 8, 9)}
    assert padded == {1: 1, 2: 4, 4: 4, 5: 8, 8: 8, 9: None}


def test_without_padding_only_exact_sizes_have_a_graph() -> None:
    config = CudaGraphConfig(batch_sizes=[1, 4], enable_padding=False)
    runner = CUDAGraphRunner(config, 64, device=CUDA)
    assert {size: runner.padded_batch_size(size) for size in (1, 2, 4, 5)} == {1: 1, 2: None, 4: 4, 5: None}


def test_default_sizes_reach_the_largest_batch() -> None:
    runner = CUDAGraphRunner(CudaGraphConfig(), 20, device=CUDA)
    assert runner.batch_sizes == [1, 2, 4, 8, 16, 20]
    assert runner.padded_batch_size(17) == 20


def test_largest_graph_first_and_lora_before_base() -> None:
    keys = [GraphKey(size, plan) for size in (4, 1, 8) for plan in (None, LoraPlan.SEQUENTIAL)]
    assert sorted(keys, key=_capture_order) == [
        GraphKey(8, LoraPlan.SEQUENTIAL),
        GraphKey(8, None),
        GraphKey(4, LoraPlan.SEQUENTIAL),
        GraphKey(4, None),
        GraphKey(1, LoraPlan.SEQUENTIAL),
        GraphKey(1, None),
    ]


def test_keys_are_compared_by_value_and_frozen() -> None:
    key = GraphKey(4, LoraPlan.SEQUENTIAL)
    assert {key: 1}[GraphKey(4, LoraPlan.SEQUENTIAL)] == 1
    with pytest.raises(AttributeError):
        key.batch_size = 8  # type: ignore[misc]
