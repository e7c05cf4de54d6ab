"""Adapters on their way from disk to host memory.

Owns the loader threads and the meaning of adapter ids. The engine acquires an adapter when a request arrives,
waits for the future without blocking, and releases the handle when the request ends. A combination of adapters is
loaded, kept and evicted like any one adapter. Knows no checkpoint formats and no device.
"""

import threading
from concurrent.futures import Future

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_handle import AdapterHandle, AdapterRequest, AdapterSource, adapter_ids, source_of
from tensorrt_lora.adapters.adapter_listing import list_adapters
from tensorrt_lora.adapters.adapter_registry import AdapterRegistry
from tensorrt_lora.adapters.adapter_source_reader import AdapterSourceReader, CombineAdapters, ReadAdapter
from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.adapters.host_cache import HostCache
from tensorrt_lora.adapters.load_queue import AdapterLoad, LoadQueue
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.utils.thread_priority import lower_priority

_CLOSED = "the adapter store is closed"
_NUM_LOADERS = 4
_NICE = 10  # a tenth of what a thread of the engine gets where all processors are busy; all of an idle one


class AdapterStore:
    """Disk to host memory, a few adapters at a time, begun in the order of the requests.

    What was read waits for room on its loader thread, so no more than one adapter per thread is outside the limits.

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
        self._arrived: list[AdapterHandle] = []  # read, and waiting for room, in this order
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"adapter-loader-{index}", daemon=True)
            for index in range(num_loaders)
        ]
        for thread in self._threads:
            thread.start()

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
        with self._changed:
            self._closed = True
            queued = self._queue.take_queued()
            self._changed.notify_all()
        for load in queued:
            self._fail(load, RuntimeError(_CLOSED))
        for thread in self._threads:
            thread.join()

    def _register(self, request: AdapterRequest, *, revive: bool) -> Exception | None:
        """Under the lock; returns what is wrong."""
        if self._closed:
            return RuntimeError(_CLOSED)
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

    # The loader threads

    def _run(self) -> None:
        lower_priority(_NICE)
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Wait for a load and see it to its end; False once the store is closed.

        A function of its own, so that an idle thread keeps no adapter in memory.
        """
        load = self._next_load()
        if load is None:
            return False
        try:
            self._serve(load)
        except Exception as error:  # it belongs to those who wait, as in any executor
            self._fail(load, error)
        return True

    def _next_load(self) -> AdapterLoad | None:
        with self._changed:
            while not self._closed:
                load = self._queue.start_next(self._may_start)
                if load is not None:
                    return load
                self._changed.wait()
        return None

    def _may_start(self, source: AdapterSource) -> bool:
        """Not what is about to make room: it is read once it is gone, or found once it may stay."""
        return self._cache.peek(source) is None or self._cache.has(source)

    def _serve(self, load: AdapterLoad) -> None:
        """Read one adapter, wait for room, and give it to all who asked for it meanwhile."""
        with self._changed:
            is_needed = load.is_wanted and not self._cache.has(load.source)
            if not is_needed:
                served = self._finish(load)
        if is_needed:
            handle = self._reader.load(load.request)
            with self._changed:
                self._wait_for_room(load, handle)
                served = self._finish(load)
        for waiter, granted in served:
            waiter.set_result(granted)

    def _peek(self, adapter_id: int) -> AdapterHandle | None:
        with self._changed:
            return self._cache.peek(adapter_id)

    def _wait_for_room(self, load: AdapterLoad, handle: AdapterHandle) -> None:
        """Until it is in the cache, or nobody wants it. Under the lock, which it lets go of while it waits."""
        self._arrived.append(handle)
        try:
            while load.is_wanted:
                problem = self._cache.lack_of_room(handle)
                if problem is not None:
                    raise AdapterError(load.request.name, load.request.path, [problem], "does_not_fit")
                if self._cache.admit(handle, self._arrived[: self._arrived.index(handle)]):
                    break
                self._changed.wait()
                if self._closed:
                    raise RuntimeError(_CLOSED)
        finally:
            if self._arrived[0] is handle:
                self._cache.stop_draining()
            self._arrived.remove(handle)

    def _finish(self, load: AdapterLoad) -> list[tuple[Future[AdapterHandle], AdapterHandle]]:
        """End a load: a reference for all who still wait. Under the lock; results are set outside of it."""
        self._queue.end(load)
        users, loaders = load.take_waiters()
        if load.pinned is not None:
            self._cache.pin(load.source, load.pinned)
        served = []
        for waiter in [*users, *loaders]:
            handle = self._cache.peek(load.source)
            assert handle is not None
            served.append((waiter, handle))
        for _ in users:
            assert self._cache.take(load.source) is not None
        if load.forgotten:
            self._cache.drop(load.source)
        self._changed.notify_all()
        return served

    def _fail(self, load: AdapterLoad, error: Exception) -> None:
        if isinstance(error, AdapterError):
            error = error.with_traceback(None)  # whose frames hold what was read
        with self._changed:
            self._queue.end(load)
            users, loaders = load.take_waiters()
            if not load.forgotten:
                self._forget_unused(adapter_ids(load.source))
            self._changed.notify_all()
        for waiter in [*users, *loaders]:
            waiter.set_exception(error)

    def _forget_unused(self, failed: set[int]) -> None:
        """Free the ids of a load that failed, except those that something else in memory or under way goes by."""
        used = {adapter_id for handle in self._cache.resident() for adapter_id in adapter_ids(handle.source)}
        used |= {adapter_id for source in self._queue.joinable for adapter_id in adapter_ids(source)}
        for adapter_id in failed - used:
            self._registry.forget(adapter_id)


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
