"""Adapters on their way to a slot while others run: a part with each step, so that no step waits for all of it.

Called by `PyExecutor` before each step, with the adapters of requests that have not started. An adapter that finds no
slot this way is copied by the step that it starts in.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey, Slot
from tensorrt_lora.lora.cuda_graph_lora_manager import CudaGraphLoraManager

_BYTES_PER_STEP = 2**24  # 4 ms where a CPU copies, 0.3 ms from page-locked memory to a GPU


@dataclass(slots=True)
class _Upload:
    slot: Slot
    copies: Iterator[int]


class SlotUploads:
    """Copies in stream order, like the steps; nothing here waits for the device."""

    def __init__(self, lora_manager: CudaGraphLoraManager) -> None:
        self._lora_manager = lora_manager
        self._slots = lora_manager.slot_manager
        self._uploads: dict[AdapterKey, _Upload] = {}

    @property
    def has_any(self) -> bool:
        return bool(self._uploads)

    @torch.inference_mode()
    def advance(
        self, wanted: Mapping[AdapterKey, AdapterHandle], active: Collection[AdapterKey], *, is_idle: bool
    ) -> set[AdapterKey]:
        """Copy the next part of every adapter; returns those whose requests may start.

        Args:
            wanted: by requests that are to start. Whatever else was on its way is given up.
            active: adapters of running requests, which keep their slots.
            is_idle: nothing runs that a copy could hold up.
        """
        for key in self._uploads.keys() - wanted.keys():
            self._give_up(key)
        return {key for key, adapter in wanted.items() if self._is_ready(adapter, active, is_idle=is_idle)}

    def _is_ready(self, adapter: AdapterHandle, active: Collection[AdapterKey], *, is_idle: bool) -> bool:
        key = adapter.key
        if is_idle:
            self._give_up(key)
        if is_idle or key in self._slots.resident():
            return True
        upload = self._uploads.get(key) or self._begin(adapter, active)
        if upload is None or self._slots.reserved(key) is not upload.slot:
            self._uploads.pop(key, None)
            return True
        copied = 0
        for nbytes in upload.copies:
            copied += nbytes
            if copied >= _BYTES_PER_STEP:
                return False
        del self._uploads[key]
        self._slots.settle(key)
        return True

    def _begin(self, adapter: AdapterHandle, active: Collection[AdapterKey]) -> _Upload | None:
        slot = self._slots.reserve(adapter, active)
        if slot is None:
            return None
        upload = self._uploads[adapter.key] = _Upload(slot, self._lora_manager.slot_copies(slot, adapter))
        return upload

    def _give_up(self, key: AdapterKey) -> None:
        upload = self._uploads.pop(key, None)
        if upload is not None and self._slots.reserved(key) is upload.slot:
            self._slots.remove(key)
