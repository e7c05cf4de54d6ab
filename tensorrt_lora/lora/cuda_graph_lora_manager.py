"""LoRA for one model: finds its layers, owns the slots and the auxiliary stream, builds each step's `LoraParams`.

Called by `PyTorchModelEngine`. Knows adapters only as `LoraAdapter`s; where they come from is `adapters/`' affair.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import nn

from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.kernels.lora_batch import MAX_EXTRA_ROWS, RANK_PAGE, pages_for_rows
from tensorrt_lora.kernels.streamed_linear_config import MAX_STREAMED_TOKENS
from tensorrt_lora.lora.adapter_slot_manager import AdapterSlotManager, Slot, SlotTenant
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora.batch_kind import BatchKind, batch_kinds, rank_kinds
from tensorrt_lora.lora.cuda_graph_lora_params import CudaGraphLoraParams
from tensorrt_lora.lora.extra_rows_builder import ExtraRowsBuilder
from tensorrt_lora.lora.lora_layer_key import LoraLayerKey, LoraLayerShape
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_plan import LoraPlan, allowed_plans
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable, default_plan
from tensorrt_lora.lora.lora_plans import LoraPlans
from tensorrt_lora.lora.lora_site import LoraSite, find_lora_layers
from tensorrt_lora.lora.module_types import LoraModuleType, target_types
from tensorrt_lora.utils.logger import logger
from tensorrt_lora.utils.multi_stream_utils import create_aux_stream

_BASE_ROW = -1


class LoraAdapter(SlotTenant, Protocol):
    """An adapter whose weights are on the host, ready to be copied to a slot."""

    @property
    def weights(self) -> AdapterWeights: ...


class CudaGraphLoraManager:
    """The slots, the tables behind them and the second stream.

    Args:
        model: its `LoraLayer`s are adaptable, as far as `lora_config.lora_target_modules` allows.
        base_parameters: the model's "<hf_name>.weight" and "<hf_name>.bias" of every site, for adapters with a bias or
            with DoRA.
        plan_table: how LoRA runs in captured forwards.
        cache_bytes: device memory that the slots' weights may take; binds together with `lora_config.num_slots`.
        max_num_tokens: largest batch, in tokens.

    Raises:
        ValueError: not even one adapter of `max_lora_rank` fits into `cache_bytes`, or no layer can be adapted.
    """

    def __init__(
        self,
        model: nn.Module,
        lora_config: LoraConfig,
        *,
        base_parameters: Mapping[str, torch.Tensor],
        plan_table: LoraPlanTable,
        cache_bytes: int,
        max_num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        placed = find_lora_layers(model)
        allowed = target_types(lora_config.lora_target_modules)
        self.sites: dict[str, LoraSite] = {
            site.hf_name: site for layer in placed for site in layer.sites() if site.module_type in allowed
        }
        # Logits then need the metadata of their own rows.
        self.adapts_head = any(site.module_type is LoraModuleType.LM_HEAD for site in self.sites.values())
        layers = {
            layer.layer.key(layer.layer_idx): layer.layer.shape
            for layer in placed
            if allowed.intersection(layer.layer.module_types)
        }
        if not layers:
            raise ValueError(
                f"lora_target_modules={list(lora_config.lora_target_modules)} names no layer of this model; it has "
                f"{sorted({t.config_name for layer in placed for t in layer.layer.module_types})}"
            )
        num_pages = _num_pages(layers, lora_config, cache_bytes, dtype)
        self.slot_manager = AdapterSlotManager(num_slots=lora_config.num_slots, num_pages=num_pages)
        self._params = CudaGraphLoraParams(
            layers,
            num_slots=lora_config.num_slots,
            num_pages=num_pages,
            max_rank=lora_config.max_lora_rank,
            max_num_tokens=max_num_tokens,
            dtype=dtype,
            device=device,
        )
        self._extra_rows = ExtraRowsBuilder(self.sites.values(), base_parameters, dtype=dtype)
        self._specialize = lora_config.cuda_graph_specialize_lora
        self._aux_stream = create_aux_stream(device) if lora_config.overlap_lora_and_base else None
        self._plan_table = plan_table
        self._plans: dict[BatchKind, LoraPlans] = {}  # what the table said: it is asked at every step
        self._allowed_plans = allowed_plans(overlap=self._aux_stream is not None)
        self._rank_kinds = rank_kinds(lora_config.max_lora_rank)
        self.fixed_plan: LoraPlan | None = None  # for measurements: instead of the table
        logger.info(
            "LoRA: %d slots of rank <= %d share %d pages of 16 rank rows (%.1f MiB) over %d layers; %s, planned by %s",
            lora_config.num_slots,
            lora_config.max_lora_rank,
            num_pages,
            self.nbytes / 2**20,
            len(layers),
            "with a second stream" if self._aux_stream else "on one stream",
            plan_table.source,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all slots' weights on the device."""
        return self._params.nbytes

    def graph_plan(self, adapters: Sequence[LoraAdapter | None], num_rows: int) -> LoraPlans | None:
        """How LoRA runs in the captured graph of `num_rows` tokens that a batch replays; None: it is not in there."""
        pages = {adapter.key: adapter.num_pages for adapter in adapters if adapter is not None}
        if self._specialize and not pages:
            return None
        if self.fixed_plan is not None:
            return LoraPlans(self.fixed_plan)
        most = max(pages.values(), default=1) * RANK_PAGE
        rank = next((rank for rank in self._rank_kinds if rank >= most), self._rank_kinds[-1])
        return self._plans_for(BatchKind(num_rows, len(pages) > 1, rank))

    def graph_plans(self, num_rows: int) -> tuple[LoraPlans | None, ...]:
        """All that `graph_plan` may answer, to be captured."""
        kinds = batch_kinds(num_rows, self.slot_manager.num_slots, self._rank_kinds)
        plans = dict.fromkeys(map(self._plans_for, kinds))
        return (*plans, None) if self._specialize else tuple(plans)

    def _plans_for(self, kind: BatchKind) -> LoraPlans:
        if kind not in self._plans:
            self._plans[kind] = self._plan_table.plans(kind, self._allowed_plans)
        return self._plans[kind]

    def slot_copies(self, slot: Slot, adapter: LoraAdapter) -> Iterator[int]:
        """Copy an adapter to a slot that is reserved for it, module by module; gives the bytes of each."""
        return self._params.slot_copies(slot, adapter.weights, self._extra_rows.rows_of(adapter.weights))

    def prepare(
        self,
        adapters: Sequence[LoraAdapter | None],
        query_lens: Sequence[int],
        *,
        num_padding_tokens: int = 0,
        graph_plan: LoraPlans | None = None,
    ) -> LoraParams:
        """Place the batch's adapters and write its metadata; call before the forward, capture or replay.

        In stream order: a further call in the same step serves what is queued after it, like logits of some rows only.
        A capture passes no adapters and padding alone: what a replay reads is rewritten in place by its own call.

        Args:
            adapters: per request; None is a base request.
            query_lens: tokens of each request in this forward.
            num_padding_tokens: rows after the last request; they run as base rows.
            graph_plan: the plan of the graph that is captured or replayed; None for an eager forward.
        """
        for adapter, slot in self.slot_manager.assign([a for a in adapters if a is not None]):
            self._params.load_slot(slot, adapter.weights, self._extra_rows.rows_of(adapter.weights))
        slots = [self.slot_manager.slot_of(a.key) if a is not None else _BASE_ROW for a in adapters]
        slots.append(_BASE_ROW)
        token_slots = np.repeat(np.array(slots, dtype=np.int32), [*query_lens, num_padding_tokens])
        self._params.write_batch(token_slots)
        return LoraParams(
            cuda_graph_params=self._params,
            use_cuda_graph_mode=graph_plan is not None,
            num_seqs=len(adapters) + num_padding_tokens,
            lora_aux_stream=self._aux_stream,
            lora_plans=graph_plan or self._eager_plans(len(token_slots)),
        )

    def _eager_plans(self, num_tokens: int) -> LoraPlans:
        """The rule's plan for many tokens. A short step waits for its launches, of which there are fewest in sequence.

        In measurements nothing of gate and up is stored beside their output: it would take gigabytes.
        """
        if num_tokens <= MAX_STREAMED_TOKENS:
            return LoraPlans(LoraPlan.SEQUENTIAL)
        if self.fixed_plan is None:
            return LoraPlans(default_plan(BatchKind(num_tokens, False, 1), self._allowed_plans))
        if self.fixed_plan is LoraPlan.EXPAND_IN_CONSUMER:
            return LoraPlans(LoraPlan.EXPAND_IN_CONSUMER)
        return LoraPlans(LoraPlan.SHRINK_BESIDE if self.fixed_plan.uses_aux_stream else LoraPlan.SEQUENTIAL)


def _num_pages(
    layers: dict[LoraLayerKey, LoraLayerShape], lora_config: LoraConfig, cache_bytes: int, dtype: torch.dtype
) -> int:
    """Pages that both the slot count and the byte limit allow. The adapter with the most rows must fit alone."""
    most = pages_for_rows(lora_config.max_lora_rank + MAX_EXTRA_ROWS)
    page_bytes = sum(shape.values_per_rank for shape in layers.values()) * RANK_PAGE * dtype.itemsize
    affordable = cache_bytes // page_bytes
    if affordable < most:
        raise ValueError(
            f"one adapter of max_lora_rank={lora_config.max_lora_rank} takes up to {most * page_bytes} bytes on the "
            f"device, but the adapter cache may take {cache_bytes}; raise peft_cache_config.device_cache_percent, or "
            f"lower max_lora_rank, or name fewer lora_target_modules"
        )
    return min(max(lora_config.num_slots * pages_for_rows(lora_config.max_lora_rank), most), affordable)
