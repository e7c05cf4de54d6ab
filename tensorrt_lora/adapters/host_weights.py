"""The host copy of an adapter's weights, in the layout that slots take.

Owns the cast to the model's dtype, the transposition of B, the split of fused projections and the block of
host memory that all of it lies in. Called by `read_peft_checkpoint` with modules that are already checked.
"""

from collections.abc import Sequence

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.site_binder import BoundModule
from tensorrt_lora.lora.adapter_weights import LoraModuleWeights, SiteKey


class _HostBlock:
    """One allocation that tensors are copied into one after another: pinning costs per call, not per byte."""

    def __init__(self, num_values: int, *, dtype: torch.dtype, pin_memory: bool) -> None:
        self._values = torch.empty(num_values, dtype=dtype, pin_memory=pin_memory)
        self._used = 0

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of `source` in the block's dtype."""
        copy = self._values[self._used : self._used + source.numel()].view(source.shape)
        self._used += source.numel()
        return copy.copy_(source)


def make_host_weights(
    modules: Sequence[BoundModule], *, dtype: torch.dtype, pin_memory: bool, problems: AdapterProblems
) -> dict[SiteKey, LoraModuleWeights]:
    """Copy bound modules to the host block: A as [rank, in], B as [rank, out], both contiguous in `dtype`.

    The parts of a fused projection share one A. Raises AdapterError listing every tensor that holds NaN or
    Inf, or values too large for `dtype`.
    """
    num_values = sum(module.lora_a.numel() + module.lora_b.numel() for module in modules)
    block = _HostBlock(num_values, dtype=dtype, pin_memory=pin_memory)
    weights: dict[SiteKey, LoraModuleWeights] = {}
    for module in modules:
        a = block.copy(module.lora_a)
        _check_finite(module.a_key, module.lora_a, a, problems)
        parts = module.lora_b.split([site.out_features for site in module.sites])
        copies = [block.copy(part.t()) for part in parts]
        for part, b in zip(parts, copies, strict=True):
            if not _check_finite(module.b_key, part, b, problems):
                break
        for site, b in zip(module.sites, copies, strict=True):
            weights[site.layer_idx, site.module_type] = LoraModuleWeights(a, b, module.scale)
    problems.check()
    return weights


def _check_finite(key: str, source: torch.Tensor, copy: torch.Tensor, problems: AdapterProblems) -> bool:
    if torch.isfinite(copy).all():
        return True
    if torch.isfinite(source.double()).all():
        problems.add(f"tensor {key}: values too large for {copy.dtype}; serve the model in float32")
    else:
        problems.add(f"tensor {key}: holds NaN or Inf; the training diverged or the file is damaged, save it again")
    return False
