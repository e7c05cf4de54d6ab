"""One decoder layer out of a traced step, for a picture in which single kernels can be seen."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tensorrt_lora.bench.kernel_trace import KernelRun

_MARGIN = 0.03  # of the layer's length, shown before and after it


@dataclass(frozen=True, slots=True)
class LayerWindow:
    """The kernels that run within [start, end] microseconds."""

    start: float
    end: float
    kernels: list[KernelRun]


def layer_window(kernels: Sequence[KernelRun], num_layers: int) -> LayerWindow:
    """A window of one layer from the middle of the step.

    A layer goes from one run to the next of the first kernel that runs once per layer; without such a kernel it is the
    step's middle, one layer's share wide.

    Args:
        kernels: of one step, in order of time.
        num_layers: decoder layers of the model.
    """
    counts = Counter(kernel.name for kernel in kernels)
    marks = [kernel for kernel in kernels if counts[kernel.name] == num_layers]
    layer = num_layers // 2
    first, last = kernels[0].start, max(kernel.end for kernel in kernels)
    if marks:
        starts = [kernel.start for kernel in marks if kernel.name == marks[0].name]
        start, end = starts[layer], [*starts, last][layer + 1]
    else:
        width = (last - first) / num_layers
        start, end = first + layer * width, first + (layer + 1) * width
    margin = (end - start) * _MARGIN
    start, end = start - margin, end + margin
    return LayerWindow(start, end, [kernel for kernel in kernels if kernel.start < end and kernel.end > start])
