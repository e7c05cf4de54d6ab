"""Adapters on their way to a slot while others run: a part with each step, so that no step waits for all of it.

Called by `AwaitedRequests` before each step, with the adapters of requests that have not started. An adapter that
finds no slot this way is copied by the step that it starts in.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey, Slot
from tensorrt_lora.lora.cuda_graph_lora_manager import CudaGraphLoraManager

_BYTES_PER_STEP = 2**24  # of one adapter: 0.3 ms from page-locked memory to a GPU
_HOST_SHARE = 0.05  # of the time, where the thread that copies runs the steps too
_HOST_PATIENCE_S = 1.0  # time that was not used for copies counts no longer than this


@dataclass(slots=True)
class _Upload:
    slot: Slot
    copies: Iterator[int]


class SlotUploads:
    """Copies in stream order, like the steps; nothing here waits for the device.

    Args:
        on_host: the steps run on the processors that copy: what bounds a part is the time it takes.
        clock: seconds.
    """

    def __init__(
        self, lora_manager: CudaGraphLoraManager, *, on_host: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lora_manager = lora_manager
        self._slots = lora_manager.slot_manager
        self._uploads: dict[AdapterKey, _Upload] = {}
        self._on_host = on_host
        self._clock = clock
        self._used_until = -math.inf  # copies so far took their share of the time until then
        self._deadline = math.inf

    @property
    def has_any(self) -> bool:
        return bool(self._uploads)

    @torch.inference_mode()
    def advance(
        self, wanted: Mapping[AdapterKey, AdapterHandle], active: Collection[AdapterKey], *, is_idle: bool
    ) -> set[AdapterKey]:
        """Copy the next part of the adapters; returns those whose requests may start.

        Args:
            wanted: by requests that are to start. Whatever else was on its way is given up.
            active: adapters of running requests, which keep their slots.
            is_idle: nothing runs that a copy could hold up.
        """
        for key in self._uploads.keys() - wanted.keys():
            self._give_up(key)
        start = self._clock()
        self._used_until = max(self._used_until, start - _HOST_PATIENCE_S)
        if self._on_host:
            self._deadline = start + _HOST_SHARE * (start - self._used_until)
        ready = {key for key, adapter in wanted.items() if self._is_ready(adapter, active, is_idle=is_idle)}
        self._used_until += (self._clock() - start) / _HOST_SHARE
        return ready

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
        while copied < _BYTES_PER_STEP and self._clock() < self._deadline:
            nbytes = next(upload.copies, None)
            if nbytes is None:
                del self._uploads[key]
                self._slots.settle(key)
                return True
            copied += nbytes
        return False

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
