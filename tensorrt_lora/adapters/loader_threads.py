"""The threads that bring adapters from disk to host memory.

Owned by `AdapterStore`, whose registry, cache and queue they share under its lock. Each takes a load from the queue,
reads it without the lock, waits for room, and gives it to all who asked for it meanwhile. Knows no checkpoint formats
and no device.
"""

import threading
from concurrent.futures import Future

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_handle import AdapterHandle, AdapterSource, adapter_ids
from tensorrt_lora.adapters.adapter_registry import AdapterRegistry
from tensorrt_lora.adapters.adapter_source_reader import AdapterSourceReader
from tensorrt_lora.adapters.host_cache import HostCache
from tensorrt_lora.adapters.load_queue import AdapterLoad, LoadQueue
from tensorrt_lora.utils.thread_priority import lower_priority

STORE_CLOSED = "the adapter store is closed"
_NICE = 10  # a tenth of what a thread of the engine gets where all processors are busy; all of an idle one


class LoaderThreads:
    """A few loads at a time, begun in the order of the queue.

    What was read waits for room on its thread, so no more than one adapter per thread is outside the limits.

    Args:
        reader: called without the lock, several calls at a time.
        registry, cache, queue: shared with the store; touched under the lock of `changed` only.
        changed: notified, by the store too, of all that a thread may wait for: new loads, releases, pins, waiters that
            give up. Futures are resolved outside of its lock.
        num_threads: they start at once.
    """

    def __init__(
        self,
        reader: AdapterSourceReader,
        registry: AdapterRegistry,
        cache: HostCache,
        queue: LoadQueue,
        changed: threading.Condition,
        *,
        num_threads: int,
    ) -> None:
        self._reader = reader
        self._registry = registry
        self._cache = cache
        self._queue = queue
        self._changed = changed
        self._arrived: list[AdapterHandle] = []  # read, and waiting for room, in this order
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"adapter-loader-{index}", daemon=True)
            for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def closed(self) -> bool:
        """Whether what joins the queue now would wait for ever. Under the lock."""
        return self._closed

    def close(self) -> None:
        """Take no more loads; whoever still waits gets a RuntimeError. Returns once the threads have ended."""
        with self._changed:
            self._closed = True
            queued = self._queue.take_queued()
            self._changed.notify_all()
        for load in queued:
            self._fail(load, RuntimeError(STORE_CLOSED))
        for thread in self._threads:
            thread.join()

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
                # The store may have been closed while the adapter was read: nobody would end the wait.
                if not self._closed:
                    self._changed.wait()
                if self._closed:
                    raise RuntimeError(STORE_CLOSED)
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
