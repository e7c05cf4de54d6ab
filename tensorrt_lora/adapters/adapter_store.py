"""Adapters on their way from disk to host memory.

Owns what callers and loader threads share, and the one lock around it. The engine acquires an adapter when a request
arrives, waits for the future without blocking, and releases the handle when the request ends. A combination of adapters
is loaded, kept and evicted like any one adapter. Knows no checkpoint formats and no device.
"""

import threading
from concurrent.futures import Future

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_handle import AdapterHandle, AdapterRequest, source_of
from tensorrt_lora.adapters.adapter_listing import list_adapters
from tensorrt_lora.adapters.adapter_registry import AdapterRegistry
from tensorrt_lora.adapters.adapter_source_reader import AdapterSourceReader, CombineAdapters, ReadAdapter
from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.adapters.host_cache import HostCache
from tensorrt_lora.adapters.load_queue import AdapterLoad, LoadQueue
from tensorrt_lora.adapters.loader_threads import STORE_CLOSED, LoaderThreads
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora_request import LoRARequest

_NUM_LOADERS = 4


class AdapterStore:
    """Disk to host memory; may be called from any thread. What takes time is done by `LoaderThreads`.

    Args:
        read, combine: as in `AdapterSourceReader`; they run on the loader threads, several calls at a time.
        max_adapters: in host memory at once (`LoraConfig.max_cpu_loras`); None: as many as the bytes allow.
        max_bytes: of their weights (`PeftCacheConfig.host_cache_size`).
        num_loaders: loads at a time.
    """

    def __init__(
        self,
        read: ReadAdapter,
        *,
        max_adapters: int | None,
        max_bytes: int,
        combine: CombineAdapters | None = None,
        num_loaders: int = _NUM_LOADERS,
    ) -> None:
        self._reader = AdapterSourceReader(read, combine, self._peek, max_bytes=max_bytes)
        self._cache = HostCache(max_adapters=max_adapters, max_bytes=max_bytes)
        self._registry = AdapterRegistry()
        self._queue = LoadQueue()
        self._changed = threading.Condition()
        self._threads = LoaderThreads(
            self._reader, self._registry, self._cache, self._queue, self._changed, num_threads=num_loaders
        )

    def acquire(self, request: AdapterRequest) -> Future[AdapterHandle]:
        """Ask for an adapter or a combination; never blocks and never raises.

        The future gives a handle with one reference, to be given back by `release`, or raises what is wrong:
        AdapterError for an adapter that cannot be used, an id that stands for another adapter or was unloaded, and a
        relative path without a current directory.
        A failed load is forgotten, so that the next request reads the files again.
        """
        waiter: Future[AdapterHandle] = Future()
        with self._changed:
            failure = self._register(request, revive=False)
            handle = None if failure else self._cache.take(source_of(request))
            if handle is None and failure is None:
                self._queue.join(request).users.append(waiter)
                self._changed.notify_all()
        return _settle(waiter, handle, failure)

    def load(self, request: LoRARequest, *, pinned: bool = False) -> Future[AdapterHandle]:
        """Bring an adapter to host memory for requests to come, also after `unload`; never blocks and never raises.

        The future gives its handle, without a reference, or raises as that of `acquire` does.

        Args:
            pinned: never evict it. The last call counts: without it, a pinned adapter is no longer pinned.
        """
        waiter: Future[AdapterHandle] = Future()
        handle = None
        with self._changed:
            failure = self._register(request, revive=True)
            if failure is None and (pinned or self._cache.has(request.lora_int_id)):
                self._cache.pin(request.lora_int_id, pinned)
                handle = self._cache.peek(request.lora_int_id)
            if failure is None and handle is None:
                load = self._queue.join(request)
                load.loaders.append(waiter)
                load.pinned = pinned
            self._changed.notify_all()
        return _settle(waiter, handle, failure)

    def release(self, handle: AdapterHandle) -> None:
        """Give back one reference; the adapter stays in memory while there is room."""
        with self._changed:
            self._cache.release(handle)
            self._changed.notify_all()

    def discard(self, waiter: Future[AdapterHandle]) -> None:
        """Give up an `acquire` whose handle nobody took yet, whatever has become of it."""
        if waiter.cancel():
            with self._changed:
                self._changed.notify_all()
        elif waiter.exception() is None:
            self.release(waiter.result())

    def forget(self, adapter_id: int) -> None:
        """Drop an adapter and the meaning of its id: the next `acquire` of it, alone or combined, reads the files anew.

        Requests that hold it run on with the version they have.
        """
        with self._changed:
            self._registry.forget(adapter_id)
            self._forget(adapter_id)

    def unload(self, adapter_id: int) -> None:
        """Like `forget`, and the id is refused until `load` is called for it.

        Requests that hold it or wait for it already are served; a `load` under way raises AdapterError. Raises
        ValueError when the id stands for nothing.
        """
        with self._changed:
            known = self._registry.unload(adapter_id)
            orphans = []
            for load in self._forget(adapter_id):
                orphans += load.loaders
                load.loaders = []
        for waiter in orphans:
            problem = f"lora_int_id {adapter_id} was unloaded while it was loading"
            waiter.set_exception(AdapterError(known.name, known.path, [problem], "unloaded"))

    def statuses(self) -> list[AdapterStatus]:
        """Every adapter that an id stands for, and what else is in memory; tiers are "host" and "disk"."""
        with self._changed:
            return list_adapters(self._registry.known, self._cache.entries(), self._queue.joinable)

    def take_gone(self) -> list[AdapterKey]:
        """What left host memory since the last call and did not come back."""
        with self._changed:
            return self._cache.take_gone()

    def resident(self) -> tuple[AdapterHandle, ...]:
        """The adapters in host memory, least recently used first."""
        with self._changed:
            return self._cache.resident()

    @property
    def host_bytes(self) -> int:
        with self._changed:
            return self._cache.nbytes

    @property
    def max_bytes(self) -> int:
        return self._cache.max_bytes

    @property
    def num_loads(self) -> int:
        """Adapters and combinations read so far."""
        return self._reader.num_loads

    @property
    def load_seconds(self) -> float:
        """The time that reading took, summed over loads that ran side by side."""
        return self._reader.load_seconds

    @property
    def num_evictions(self) -> int:
        with self._changed:
            return self._cache.num_evictions

    def close(self) -> None:
        """Stop loading; whoever still waits gets a RuntimeError. Returns once the loader threads have ended."""
        self._threads.close()

    def _register(self, request: AdapterRequest, *, revive: bool) -> Exception | None:
        """Under the lock; returns what is wrong."""
        if self._threads.closed:
            return RuntimeError(STORE_CLOSED)
        try:
            self._registry.register(*_parts(request), revive=revive)
        except AdapterError as error:
            return error
        return None

    def _forget(self, adapter_id: int) -> list[AdapterLoad]:
        """Under the lock; returns the loads that nobody may join any more."""
        self._cache.forget(adapter_id)
        self._changed.notify_all()
        return self._queue.forget(adapter_id)

    def _peek(self, adapter_id: int) -> AdapterHandle | None:
        with self._changed:
            return self._cache.peek(adapter_id)


def _settle(
    waiter: Future[AdapterHandle], handle: AdapterHandle | None, failure: Exception | None
) -> Future[AdapterHandle]:
    """Answer at once what can be answered at once."""
    if failure is not None:
        waiter.set_exception(failure)
    elif handle is not None:
        waiter.set_result(handle)
    return waiter


def _parts(request: AdapterRequest) -> list[LoRARequest]:
    return [request] if isinstance(request, LoRARequest) else [part for part, _ in request.parts]
