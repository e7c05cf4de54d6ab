"""The engine's answers to `LoadAdapter`, `UnloadAdapter` and `ListAdapters`.

Called by `PyExecutor` on the engine's loop. Waits for no disk: a load is a future until it is done. Keeps the slots in
line with host memory: what has left it holds no slot.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_handle import AdapterHandle, AdapterRequest
from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.adapters.adapter_store import AdapterStore
from tensorrt_lora.engine.control_messages import ControlReply, ListAdapters, LoadAdapter, UnloadAdapter
from tensorrt_lora.lora.adapter_slot_manager import AdapterSlotManager
from tensorrt_lora.utils.logger import logger


@dataclass(frozen=True, slots=True)
class _PendingLoad:
    message: LoadAdapter
    handle: Future[AdapterHandle]


class AdapterControl:
    """Takes messages at any time; `take_replies` has the answers that are there.

    Args:
        store, slots: None in an engine without LoRA, which refuses to load and knows no adapters.
    """

    def __init__(self, store: AdapterStore | None, slots: AdapterSlotManager | None) -> None:
        self._store = store
        self._slots = slots
        self._loads: list[_PendingLoad] = []

    @property
    def pending(self) -> Sequence[Future[AdapterHandle]]:
        """What loads wait for."""
        return [load.handle for load in self._loads]

    def take(self, message: LoadAdapter | UnloadAdapter | ListAdapters) -> ControlReply | None:
        """Begin what is asked; None if the answer comes later."""
        call_id = message.call_id
        if isinstance(message, ListAdapters):
            return ControlReply(call_id, self._statuses())
        if self._store is None:
            problem = "the engine runs without LoRA; set lora_config=LoraConfig(...)"
            return ControlReply(call_id, error=ValueError(problem))
        if isinstance(message, LoadAdapter):
            load = self._store.load(message.lora_request, pinned=message.pinned)
            self._loads.append(_PendingLoad(message, load))
            return None
        try:
            self._store.unload(message.lora_int_id)
        except ValueError as error:
            return ControlReply(call_id, error=error)
        return ControlReply(call_id)

    def take_replies(self) -> list[ControlReply]:
        """The answers to loads that have ended."""
        ended = [load for load in self._loads if load.handle.done()]
        if ended:
            self._loads = [load for load in self._loads if load not in ended]
        return [self._answer(load) for load in ended]

    def free_slots(self) -> None:
        """Take the slots of adapters that host memory no longer has; none of them is in use."""
        if self._store is not None and self._slots is not None:
            for key in self._store.take_gone():
                self._slots.remove(key)

    def _answer(self, load: _PendingLoad) -> ControlReply:
        call_id, request = load.message.call_id, load.message.lora_request
        error = load.handle.exception()
        if error is None:
            for status in self._statuses():
                if status.lora_int_id == request.lora_int_id and status.state != "draining":
                    return ControlReply(call_id, status)
            problem = f"lora_int_id {request.lora_int_id} was unloaded as soon as it was loaded"
            return ControlReply(call_id, error=AdapterError(request.name, request.path, [problem], "unloaded"))
        return ControlReply(call_id, error=adapter_failure(request, error))

    def _statuses(self) -> list[AdapterStatus]:
        if self._store is None:
            return []
        on_device = set() if self._slots is None else set(self._slots.resident())
        return [
            replace(status, tier="gpu") if (status.lora_int_id, status.version) in on_device else status
            for status in self._store.statuses()
        ]


def adapter_failure(request: AdapterRequest, error: BaseException) -> ValueError:
    """What to tell users of an adapter that could not be loaded, whatever it was: it is that adapter's affair alone."""
    if isinstance(error, ValueError):
        return error
    # The disk, page-locked memory, or a fault of the reader.
    logger.error("adapter %r could not be loaded", request.name, exc_info=error)
    return AdapterError(request.name, request.path, [f"{type(error).__name__}: {error}"], "failed")
