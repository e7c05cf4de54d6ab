"""Copy bandwidth: bytes read and written per second. Only that it is a speed; how high is the machine's affair."""

import torch

from tensorrt_lora.bench.bandwidth import measure_copy_bandwidth


def test_gives_a_speed() -> None:
    bandwidth = measure_copy_bandwidth(torch.device("cpu"), num_bytes=1 << 16)
    assert 1e6 < bandwidth < 1e15
