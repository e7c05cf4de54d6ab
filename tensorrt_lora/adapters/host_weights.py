"""The host copy of an adapter's weights, in the layout that slots take.

Owns the cast to the model's dtype, the transposition of B, the split of fused projections and the block of
host memory that all of it lies in. Called by the checkpoint readers with modules that are already checked.
"""

from collections.abc import Sequence

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.bound_module import BoundModule, FileTensor
from tensorrt_lora.adapters.load_pacer import GiveWay, go_on
from tensorrt_lora.adapters.piecewise import copy_finite
from tensorrt_lora.lora.adapter_weights import LoraModuleWeights, SiteKey

_SEGMENT_BYTES = 2**25


class HostBlock:
    """Memory that tensors are copied into one after another.

    Of a few large segments: pinning costs per call, but one call for hundreds of megabytes keeps the device's driver
    from everybody else. Segments of one size can be used again for the next adapter.
    """

    def __init__(self, num_values: int, *, dtype: torch.dtype, pin_memory: bool) -> None:
        self._dtype = dtype
        self._pin_memory = pin_memory
        self._num_left = num_values
        self._segment = torch.empty(0, dtype=dtype)
        self._used = 0

    def take(self, *shape: int) -> torch.Tensor:
        """The next free part of the block, uninitialised."""
        count = torch.Size(shape).numel()
        assert count <= self._num_left, "more was taken than the block was made for"
        if self._used + count > len(self._segment):
            size = max(count, min(self._num_left, _SEGMENT_BYTES // self._dtype.itemsize))
            self._segment = torch.empty(size, dtype=self._dtype, pin_memory=self._pin_memory)
            self._used = 0
        part = self._segment[self._used : self._used + count].view(shape)
        self._used += count
        self._num_left -= count
        return part


def make_host_weights(
    modules: Sequence[BoundModule],
    *,
    dtype: torch.dtype,
    pin_memory: bool,
    problems: AdapterProblems,
    give_way: GiveWay = go_on,
) -> dict[SiteKey, LoraModuleWeights]:
    """Copy bound modules to the host: A as [rank, in], B as [rank, out], biases [out], contiguous in `dtype`.

    Magnitudes are float32, and a bias of lora_B comes multiplied by the module's scale. The parts of a fused projection
    share one A. Raises AdapterError listing every tensor that holds NaN or Inf, or values too large for `dtype`.
    """
    counts = {dtype: 0, torch.float32: 0}
    for tensor in (tensor for module in modules for tensor in module.tensors):
        counts[dtype] += tensor.values.numel()
    magnitudes = [module.magnitude.values.numel() for module in modules if module.magnitude is not None]
    copier = _Copier(
        HostBlock(counts[dtype] - sum(magnitudes), dtype=dtype, pin_memory=pin_memory),
        HostBlock(sum(magnitudes), dtype=torch.float32, pin_memory=pin_memory),
        problems,
        give_way,
    )
    weights: dict[SiteKey, LoraModuleWeights] = {}
    for module in modules:
        weights.update(copier.copy_module(module))
    problems.check()
    return weights


class _Copier:
    def __init__(
        self, block: HostBlock, magnitude_block: HostBlock, problems: AdapterProblems, give_way: GiveWay
    ) -> None:
        self._block = block
        self._magnitude_block = magnitude_block
        self._problems = problems
        self._give_way = give_way

    def copy_module(self, module: BoundModule) -> dict[SiteKey, LoraModuleWeights]:
        sizes = [site.out_features for site in module.sites]
        width = module.sites[0].in_features
        a = self._copy(module.lora_a) if module.lora_a is not None else self._block.take(0, width)
        b = self._copy_b(module, sizes)
        bias = self._copy_parts(module.lora_bias, sizes, scale=module.scale)
        base_bias = self._copy_parts(module.base_bias, sizes)
        magnitude = self._copy_parts(module.magnitude, sizes, block=self._magnitude_block)
        return {
            (site.layer_idx, site.module_type): LoraModuleWeights(
                a, b[part], module.scale, bias=bias[part], base_bias=base_bias[part], magnitude=magnitude[part]
            )
            for part, site in enumerate(module.sites)
        }

    def _copy(self, tensor: FileTensor) -> torch.Tensor:
        [copy] = self._copy_all(tensor, [tensor.values], self._block)
        return copy

    def _copy_b(self, module: BoundModule, sizes: list[int]) -> list[torch.Tensor]:
        if module.lora_b is None:
            return [self._block.take(0, size) for size in sizes]
        return self._copy_all(module.lora_b, [part.t() for part in module.lora_b.values.split(sizes)], self._block)

    def _copy_parts(
        self, tensor: FileTensor | None, sizes: list[int], *, scale: float = 1.0, block: HostBlock | None = None
    ) -> list[torch.Tensor | None]:
        """A vector [sum(sizes)], one part for each site."""
        if tensor is None:
            return [None] * len(sizes)
        # In the precision that PEFT's own product has, and rounded once.
        values = tensor.values if scale == 1.0 else tensor.values.float() * scale
        return [*self._copy_all(tensor, values.split(sizes), block or self._block)]

    def _copy_all(self, tensor: FileTensor, sources: Sequence[torch.Tensor], block: HostBlock) -> list[torch.Tensor]:
        """Contiguous copies of parts of a tensor; what is wrong with their values goes to `problems`."""
        copies = [block.take(*source.shape) for source in sources]
        finite = [copy_finite(copy, source, self._give_way) for copy, source in zip(copies, sources, strict=True)]
        if not all(finite):
            self._report(tensor, copies[0].dtype)
        return copies

    def _report(self, tensor: FileTensor, dtype: torch.dtype) -> None:
        if torch.isfinite(tensor.values.double()).all():
            self._problems.add(f"tensor {tensor.key}: values too large for {dtype}; serve the model in float32")
        else:
            self._problems.add(
                f"tensor {tensor.key}: holds NaN or Inf; the training diverged or the file is damaged, save it again"
            )
