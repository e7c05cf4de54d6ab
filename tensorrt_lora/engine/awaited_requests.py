"""Requests that wait for their adapter: for the disk first, then for its way to the device.

Called by `PyExecutor` on the engine's loop, which nothing here holds up. A request is a message until its adapter is
there; knows no sequences.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.adapters.adapter_store import AdapterStore
from tensorrt_lora.engine.generation_request import GenerationRequest
from tensorrt_lora.engine.scheduler import Scheduler
from tensorrt_lora.engine.slot_uploads import SlotUploads
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey


@dataclass(slots=True, eq=False)
class AwaitedRequest:
    """A request, its place in the order of arrival, and its adapter once it is in host memory."""

    message: GenerationRequest
    arrival: int
    handle: Future[AdapterHandle]


class AwaitedRequests:
    """In arrival order; each leaves once, by `cancel` or `take_arrived`.

    Args:
        store, uploads: None in an engine without LoRA, where no request may be added.
        scheduler: asked for the adapters that keep their slots.
    """

    def __init__(self, store: AdapterStore | None, uploads: SlotUploads | None, scheduler: Scheduler) -> None:
        self._store = store
        self._uploads = uploads
        self._scheduler = scheduler
        self._requests: list[AwaitedRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def pending(self) -> Sequence[Future[AdapterHandle]]:
        """What the requests wait for."""
        return [request.handle for request in self._requests]

    def add(self, message: GenerationRequest, arrival: int) -> None:
        """Ask for the adapter of a request that has one."""
        assert self._store is not None and message.lora_request is not None
        self._requests.append(AwaitedRequest(message, arrival, self._store.acquire(message.lora_request)))

    def cancel(self, request_id: int) -> bool:
        """Give a request and its adapter up; False if it does not wait here."""
        for request in self._requests:
            if request.message.request_id == request_id:
                assert self._store is not None
                self._requests.remove(request)
                self._store.discard(request.handle)
                return True
        return False

    def take_arrived(self, *, is_idle: bool) -> tuple[list[AwaitedRequest], list[AwaitedRequest]]:
        """Let go of the requests whose adapter could not be read, and of those whose adapter is on the device.

        Every adapter that has been read is copied a part further; call it once a step.

        Args:
            is_idle: nothing runs that a copy could hold up.
        """
        arrived = [request for request in self._requests if request.handle.done()]
        failed = [request for request in arrived if request.handle.exception() is not None]
        read = [(request, request.handle.result()) for request in arrived if request not in failed]
        on_device = self._advance_uploads({handle.key: handle for _, handle in read}, is_idle=is_idle)
        ready = [request for request, handle in read if handle.key in on_device]
        for request in [*failed, *ready]:
            self._requests.remove(request)
        return failed, ready

    def _advance_uploads(self, handles: dict[AdapterKey, AdapterHandle], *, is_idle: bool) -> set[AdapterKey]:
        if self._uploads is None or not (handles or self._uploads.has_any):
            return set()
        return self._uploads.advance(handles, self._scheduler.active_adapters, is_idle=is_idle)
