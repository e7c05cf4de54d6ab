"""CUDAGraphRunner without a GPU: which batches have a graph, and in which order graphs are captured."""

import pytest
import torch

from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig
from tensorrt_lora.engine.cuda_graph_runner import CUDAGraphRunner, GraphKey, _capture_order
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plans import LoraPlans

SEQUENTIAL = LoraPlans(LoraPlan.SEQUENTIAL)
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


def test_steps_with_a_prefill_are_padded_to_the_next_captured_number_of_tokens() -> None:
    config = CudaGraphConfig(prefill_token_buckets=[64, 16])
    runner = CUDAGraphRunner(config, 8, 128, device=CUDA)
    assert runner.prefill_token_buckets == [16, 64]
    padded = {tokens: runner.padded_num_tokens(tokens) for tokens in (1, 16, 17, 64, 65)}
    assert padded == {1: 16, 16: 16, 17: 64, 64: 64, 65: None}


def test_sizes_that_stand_for_steps_without_a_graph() -> None:
    runner = CUDAGraphRunner(CudaGraphConfig(), 8, 8192, device=CUDA)
    assert runner.eager_sizes(8192) == [2048, 4096, 8192]
    assert runner.eager_sizes(5000) == [2048, 4096, 5000]
    assert runner.eager_sizes(2048) == []
    without = CUDAGraphRunner(CudaGraphConfig(prefill_token_buckets=[]), 8, 8192, device=CUDA)
    assert without.eager_sizes(8192) == []


def test_no_buckets_and_no_gpu_mean_no_prefill_graphs() -> None:
    for runner in (
        CUDAGraphRunner(CudaGraphConfig(prefill_token_buckets=[]), 8, 128, device=CUDA),
        CUDAGraphRunner(CudaGraphConfig(), 8, 128, device=CPU),
        CUDAGraphRunner(None, 8, 128, device=CUDA),
    ):
        assert runner.prefill_token_buckets == [] and runner.padded_num_tokens(1) is None


def test_kinds_of_steps_are_captured_by_their_rows() -> None:
    keys = [GraphKey(8, None), GraphKey(8, None, is_prefill=True), GraphKey(16, None, is_prefill=True)]
    keys.append(GraphKey(8, SEQUENTIAL, is_prefill=True))
    assert sorted(keys, key=_capture_order) == [keys[2], keys[3], keys[1], keys[0]]


def test_largest_graph_first_and_lora_before_base() -> None:
    keys = [GraphKey(size, plan) for size in (4, 1, 8) for plan in (None, SEQUENTIAL)]
    assert sorted(keys, key=_capture_order) == [
        GraphKey(8, SEQUENTIAL),
        GraphKey(8, None),
        GraphKey(4, SEQUENTIAL),
        GraphKey(4, None),
        GraphKey(1, SEQUENTIAL),
        GraphKey(1, None),
    ]


def test_keys_are_compared_by_value_and_frozen() -> None:
    key = GraphKey(4, SEQUENTIAL)
    assert {key: 1}[GraphKey(4, SEQUENTIAL)] == 1
    with pytest.raises(AttributeError):
        key.batch_size = 8  # type: ignore[misc]
