"""The device side of LoRA: slot tables and batch metadata whose addresses never change.

One data model serves prefill, decode, mixed batches, eager runs and captured graphs. A graph captured with no adapter
replays with any: what it reads is rewritten in place between replays.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from tensorrt_lora.kernels.lora_batch import (
    MAX_EXTRA_ROWS,
    NUM_LORA_COUNTERS,
    RANK_PAGE,
    LoraBatch,
    LoraBatchBuffers,
    LoraTables,
    pages_for_rows,
)
from tensorrt_lora.lora.adapter_slot_manager import Slot
from tensorrt_lora.lora.adapter_weights import AdapterWeights, SiteKey
from tensorrt_lora.lora.extra_rows import ExtraRows
from tensorrt_lora.lora.lora_layer_key import LoraLayerKey, LoraLayerShape


class CudaGraphLoraParams:
    """Pools, tables and metadata for all LoRA layers of a model.

    Args:
        layers: the adaptable layers; each gets an A pool [modules, rows, in] and a B pool [rows, sum(out)].
        num_slots: adapters on the device at once.
        num_pages: pages of `RANK_PAGE` rank rows that the slots share; every pool has num_pages * RANK_PAGE rows.
        max_rank: largest rank of any module of any adapter.
        max_num_tokens: largest batch, in tokens.
        dtype: dtype of the pools, the model's.
    """

    def __init__(
        self,
        layers: Mapping[LoraLayerKey, LoraLayerShape],
        *,
        num_slots: int,
        num_pages: int,
        max_rank: int,
        max_num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        rows = num_pages * RANK_PAGE
        num_sites = sum(len(key.module_ids) for key in layers)
        # As wide as the adapter with the most rows, so that no slot's last page lies beyond its row of the table.
        max_pages = pages_for_rows(max_rank + MAX_EXTRA_ROWS)
        self._page_table = torch.zeros((num_slots, max_pages), dtype=torch.int32, device=device)
        # One row per site, so that the tables of a layer are consecutive rows and a slot is one column.
        self._rank = torch.zeros((num_sites, num_slots), dtype=torch.int32, device=device)
        self._scale = torch.zeros((num_sites, num_slots), dtype=torch.float32, device=device)
        self._extras = torch.zeros((num_sites, num_slots), dtype=torch.int32, device=device)
        self._batch_buffers = LoraBatchBuffers(max_num_tokens=max_num_tokens, num_slots=num_slots, device=device)
        counters = torch.zeros(NUM_LORA_COUNTERS, dtype=torch.int32, device=device)
        self.layer_info: dict[LoraLayerKey, LoraTables] = {}
        first_site = 0
        for key, shape in layers.items():
            sites = slice(first_site, first_site + len(key.module_ids))
            self.layer_info[key] = LoraTables(
                a_pool=torch.zeros((len(key.module_ids), rows, shape.in_features), dtype=dtype, device=device),
                b_pool=torch.zeros((rows, sum(shape.output_sizes)), dtype=dtype, device=device),
                page_table=self._page_table,
                rank=self._rank[sites],
                scale=self._scale[sites],
                extras=self._extras[sites],
                output_sizes=shape.output_sizes,
                max_rank=pages_for_rows(max_rank) * RANK_PAGE,
                counters=counters,
            )
            first_site = sites.stop
        self.batch: LoraBatch = self.write_batch(np.zeros(0, dtype=np.int32))

    def write_batch(self, token_slots: np.ndarray) -> LoraBatch:
        """Put the step's token-to-slot map [T] (int32, -1 for base and padding rows) on the device, in place.

        The layout depends on T alone, so a graph captured for T tokens finds the next map where it read the last.
        """
        self.batch = self._batch_buffers.write(token_slots)
        return self.batch

    def load_slot(self, slot: Slot, weights: AdapterWeights, extra_rows: Mapping[SiteKey, ExtraRows]) -> None:
        """Copy an adapter's weights to the slot's pages, in stream order with the forwards around it.

        Modules that the adapter does not touch get rank 0 and no extras, which is where kernels stop.

        Args:
            extra_rows: of the modules that have a bias or a magnitude.
        """
        for _ in self.slot_copies(slot, weights, extra_rows):
            pass

    def slot_copies(
        self, slot: Slot, weights: AdapterWeights, extra_rows: Mapping[SiteKey, ExtraRows]
    ) -> Iterator[int]:
        """`load_slot` module by module: gives the bytes of each. The slot holds the adapter once there are no more."""
        device = self._page_table.device
        runs = _consecutive_runs(slot.pages)
        pages = torch.tensor(slot.pages, dtype=torch.int32)
        self._page_table[slot.index, : len(slot.pages)].copy_(pages)
        ranks, scales, flags = [], [], []
        for key, tables in self.layer_info.items():
            for index, (module_type, columns) in enumerate(zip(key.module_ids, tables.column_slices, strict=True)):
                site_key = (key.layer_idx, module_type)
                module, extra = weights.modules.get(site_key), extra_rows.get(site_key)
                ranks.append(module.rank if module else 0)
                scales.append(module.scale if module else 0.0)
                flags.append(extra.flags if extra else 0)
                if module:
                    _copy_rows(tables.a_pool[index], module.a, runs)
                    _copy_rows(tables.b_pool[:, columns], module.b, runs)
                if module and extra:
                    _copy_rows(tables.b_pool[:, columns], extra.rows, runs, first=module.rank)
                if module:
                    yield module.a.nbytes + module.b.nbytes
        for table, values in ((self._rank, ranks), (self._scale, scales), (self._extras, flags)):
            table[:, slot.index].copy_(torch.tensor(values, dtype=table.dtype, device=device))

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return sum(tables.a_pool.nbytes + tables.b_pool.nbytes for tables in self.layer_info.values())


def _consecutive_runs(pages: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pages as (first pool row, rows) runs: neighbouring pages are copied at once."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        start = page * RANK_PAGE
        if runs and sum(runs[-1]) == start:
            runs[-1] = (runs[-1][0], runs[-1][1] + RANK_PAGE)
        else:
            runs.append((start, RANK_PAGE))
    return runs


def _copy_rows(pool: torch.Tensor, rows: torch.Tensor, runs: list[tuple[int, int]], *, first: int = 0) -> None:
    """Copy rows [n, width] to the slot's rows from `first` on; asynchronous from page-locked memory.

    Args:
        runs: where the slot's rows lie in the pool.
    """
    end = first + rows.shape[0]
    passed = 0
    for start, length in runs:
        low, high = max(first, passed), min(end, passed + length)
        if low < high:
            target = pool[start + low - passed : start + high - passed]
            target.copy_(rows[low - first : high - first], non_blocking=True)
        passed += length
