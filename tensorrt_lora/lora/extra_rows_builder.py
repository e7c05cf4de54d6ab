"""The rows behind an adapter's rank rows: what its bias and its DoRA magnitude come to on the live base model.

Called by `CudaGraphLoraManager` when an adapter gets a slot. The adapter's own weights stay as they are.
"""

from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights, SiteKey
from tensorrt_lora.lora.dora import dora_gain
from tensorrt_lora.lora.extra_rows import ExtraRows
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.utils.device import pin_memory_available


class ExtraRowsBuilder:
    """Computes the extra rows of an adapter once, and keeps them on the host for as long as its weights live.

    Recomputing would read the base model's weights with every load of a slot; kept on the device they would take memory
    that nobody has set aside.

    Args:
        sites: the sites that adapters may change.
        base_parameters: the base model's "<hf_name>.weight" and "<hf_name>.bias" (where there is one), on the device.
        dtype: the model's.
    """

    def __init__(self, sites: Iterable[LoraSite], base_parameters: Mapping[str, Tensor], *, dtype: torch.dtype) -> None:
        self._hf_names = {(site.layer_idx, site.module_type): site.hf_name for site in sites}
        self._base_parameters = base_parameters
        self._dtype = dtype
        self._kept: WeakKeyDictionary[AdapterWeights, dict[SiteKey, ExtraRows]] = WeakKeyDictionary()

    @torch.inference_mode()
    def rows_of(self, weights: AdapterWeights) -> Mapping[SiteKey, ExtraRows]:
        """The extra rows of every module that has any, on the host.

        On CUDA their values may still be on their way: they are there for what is queued on the current stream.
        """
        kept = self._kept.get(weights)
        if kept is None:
            built = {key: self._build(key, m) for key, m in weights.modules.items() if m.max_extra_rows}
            kept = self._kept[weights] = _copy_to_host({key: extra for key, extra in built.items() if extra.flags})
        return kept

    def _build(self, key: SiteKey, module: LoraModuleWeights) -> ExtraRows:
        """y = W x + b0 becomes y + (g - 1) y + g delta + bias': the bias is b - b0 - (g - 1) b0 plus the adapter's."""
        name = self._hf_names[key]
        weight = self._base_parameters[f"{name}.weight"]
        old_bias = self._base_parameters.get(f"{name}.bias")
        terms: list[Tensor] = []
        if module.bias is not None:
            terms.append(module.bias.to(weight.device).float())
        if module.base_bias is not None:
            terms.append(module.base_bias.to(weight.device).float())
            if old_bias is not None:
                terms.append(-old_bias.float())
        gain = None
        if module.magnitude is not None:
            a, b, magnitude = (t.to(weight.device) for t in (module.a, module.b, module.magnitude))
            is_embedding = key[1] is LoraModuleType.EMBED_TOKENS
            gain = dora_gain(weight, a, b, module.scale, magnitude, is_embedding=is_embedding).to(self._dtype)
            if old_bias is not None:
                terms.append(-gain.float() * old_bias.float())  # of the gain as it is stored
        rows = [sum(terms[1:], start=terms[0]).to(self._dtype)] if terms else []
        flags = BIAS_ROW if terms else 0
        if gain is not None:
            rows.append(gain)
            flags |= GAIN_ROW
        return ExtraRows(flags, torch.stack(rows))


def _copy_to_host(extras: dict[SiteKey, ExtraRows]) -> dict[SiteKey, ExtraRows]:
    """Copies in one block of host memory, page-locked where that helps; does not wait for the device."""
    if not extras:
        return {}
    flat = torch.cat([extra.rows.flatten() for extra in extras.values()])
    pin_memory = pin_memory_available(flat.device)
    block = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=pin_memory).copy_(flat, non_blocking=pin_memory)
    parts = block.split([extra.rows.numel() for extra in extras.values()])
    return {
        key: ExtraRows(extra.flags, part.view(extra.rows.shape))
        for (key, extra), part in zip(extras.items(), parts, strict=True)
    }
