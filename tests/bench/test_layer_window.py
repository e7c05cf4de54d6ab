"""The window of a picture: one layer, found by a kernel that runs once in each."""

import pytest

from tensorrt_lora.bench.kernel_trace import KernelRun
from tensorrt_lora.bench.layer_window import layer_window


def test_one_layer_from_the_middle(kernels: list[KernelRun]) -> None:
    window = layer_window(kernels, num_layers=4)
    assert window.start == pytest.approx(1200.0 - 3.0) and window.end == pytest.approx(1300.0 + 3.0)
    # The layer's seven kernels, and the next layer's projection, which starts within the margin, and its shrink.
    assert [kernel.start for kernel in window.kernels] == [1200, 1202, 1220, 1236, 1240, 1262, 1270, 1300, 1302]


def test_the_last_layer_ends_with_the_step(kernels: list[KernelRun]) -> None:
    one_layer = [kernel for kernel in kernels if kernel.start >= 1300.0]
    window = layer_window(one_layer, num_layers=1)
    assert window.start == pytest.approx(1300.0 - 2.7) and window.end == pytest.approx(1390.0 + 2.7)
    assert window.kernels == one_layer


def test_without_a_kernel_per_layer_the_share_of_a_layer(kernels: list[KernelRun]) -> None:
    window = layer_window(kernels, num_layers=3)
    assert window.end - window.start == pytest.approx(130.0 * 1.06)
    assert window.start == pytest.approx(1000.0 + 130.0 - 3.9)
