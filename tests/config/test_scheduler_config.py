"""SchedulerConfig: bounds."""

import pytest

from tensorrt_lora.config.scheduler_config import SchedulerConfig


def test_zero_means_never_overtaken() -> None:
    assert SchedulerConfig(max_adapter_wait_iters=0).max_adapter_wait_iters == 0


def test_refuses_a_negative_wait() -> None:
    with pytest.raises(ValueError, match="max_adapter_wait_iters"):
        SchedulerConfig(max_adapter_wait_iters=-1)
