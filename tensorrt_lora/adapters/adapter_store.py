"""Adapters on their way from disk to host memory.

Owns the loader thread and the meaning of adapter ids. The engine acquires an adapter when a request arrives,
waits for the future without blocking, and releases the handle when the request ends. A combination of adapters is
loaded, kept and evicted like any one adapter. Knows no checkpoint formats and no device.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter

from tensorrt_lora.adapters.adapter_handle import AdapterHandle, AdapterRequest, AdapterSource, adapter_ids, source_of
from tensorrt_lora.adapters.adapter_registry import AdapterRegistry
from tensorrt_lora.adapters.host_cache import HostCache
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tensorrt_lora.utils.logger import logger

_CLOSED = "the adapter store is closed"


@dataclass(slots=True, eq=False)
class _Load:
    """One adapter to be read, and everybody who waits for it."""

    request: AdapterRequest
    waiters: list[Future[AdapterHandle]] = field(default_factory=list)
    # By `AdapterStore.forget` while under way: what it reads goes to its waiters and to nobody later.
    forgotten: bool = False

    @property
    def source(self) -> AdapterSource:
        return source_of(self.request)

    @property
    def is_wanted(self) -> bool:
        return any(not waiter.cancelled() for waiter in self.waiters)


class AdapterStore:
    """Disk to host memory, one adapter at a time, in the order of the requests.

    Args:
        read: reads and checks an adapter; raises AdapterError. Runs on the loader thread.
        combine: makes one adapter of several, in the order of the request's parts; the same holds for it.
        max_adapters: in host memory at once (`LoraConfig.max_cpu_loras`); None: as many as the bytes allow.
        max_bytes: of their weights (`PeftCacheConfig.host_cache_size`).
    """

    def __init__(
        self,
        read: Callable[[LoRARequest], AdapterWeights],
        *,
        max_adapters: int | None,
        max_bytes: int,
        combine: Callable[[WeightedLoRARequests, Sequence[AdapterWeights]], AdapterWeights] | None = None,
    ) -> None:
        self._read = read
        self._combine = combine
        self._cache = HostCache(max_adapters=max_adapters, max_bytes=max_bytes)
        self._registry = AdapterRegistry()
        self._queue: deque[_Load] = deque()
        self._loads: dict[AdapterSource, _Load] = {}  # queued or under way
        self._changed = threading.Condition()
        self._closed = False
        self.num_loads = 0
        self._thread = threading.Thread(target=self._run, name="adapter-loader", daemon=True)
        self._thread.start()

    def acquire(self, request: AdapterRequest) -> Future[AdapterHandle]:
        """Ask for an adapter or a combination; never blocks and never raises.

        The future gives a handle with one reference, to be given back by `release`, or raises what is wrong:
        AdapterError for an adapter that cannot be used, ValueError for an id that stands for another adapter or a
        relative path without a current directory.
        A failed load is forgotten, so that the next request reads the files again.
        """
        waiter: Future[AdapterHandle] = Future()
        handle: AdapterHandle | None = None
        failure: Exception | None = None
        with self._changed:
            try:
                self._registry.register(*_parts(request))
            except (ValueError, OSError) as error:
                failure = error
            if self._closed:
                failure = RuntimeError(_CLOSED)
            if failure is None:
                handle = self._cache.take(source_of(request))
                if handle is None:
                    self._enqueue(request, waiter)
        if failure is not None:
            waiter.set_exception(failure)
        elif handle is not None:
            waiter.set_result(handle)
        return waiter

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
            self._cache.forget(adapter_id)
            self._registry.forget(adapter_id)
            for source in [source for source in self._loads if adapter_id in adapter_ids(source)]:
                self._loads.pop(source).forgotten = True
            self._changed.notify_all()

    def resident(self) -> tuple[AdapterHandle, ...]:
        """The adapters in host memory, least recently used first."""
        with self._changed:
            return self._cache.resident()

    @property
    def host_bytes(self) -> int:
        with self._changed:
            return self._cache.nbytes

    @property
    def num_evictions(self) -> int:
        with self._changed:
            return self._cache.num_evictions

    def close(self) -> None:
        """Stop loading; whoever still waits gets a RuntimeError. Returns once the loader thread has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _enqueue(self, request: AdapterRequest, waiter: Future[AdapterHandle]) -> None:
        load = self._loads.get(source_of(request))
        if load is None:
            load = self._loads[source_of(request)] = _Load(request)
            self._queue.append(load)
            self._changed.notify_all()
        load.waiters.append(waiter)

    def _run(self) -> None:
        while (load := self._next_load()) is not None:
            try:
                self._serve(load)
            except Exception as error:  # it belongs to those who wait, as in any executor
                self._fail(load, error)
        with self._changed:
            unserved = {*self._loads.values(), *self._queue}
        for load in unserved:
            self._fail(load, RuntimeError(_CLOSED))

    def _next_load(self) -> _Load | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            return None if self._closed else self._queue.popleft()

    def _serve(self, load: _Load) -> None:
        """Read one adapter, wait for room, and give it to all who asked for it meanwhile."""
        with self._changed:
            # It may be here: asked for while it made room for another, it stayed in the end.
            is_needed = load.is_wanted and not self._cache.has(load.source)
            if not is_needed:
                served = self._finish(load)
        if is_needed:
            handle = self._load(load.request)
            with self._changed:
                while load.is_wanted and not self._cache.admit(handle):
                    self._changed.wait()
                    if self._closed:
                        raise RuntimeError(_CLOSED)
                served = self._finish(load)
        for waiter, granted in served:
            waiter.set_result(granted)

    def _load(self, request: AdapterRequest) -> AdapterHandle:
        start = perf_counter()
        if isinstance(request, LoRARequest):
            weights = self._read(request)
        else:
            assert self._combine is not None, "this store was made without a way to combine adapters"
            weights = self._combine(request, [self._weights_of(part) for part in _parts(request)])
        handle = AdapterHandle.create(request, weights)
        self.num_loads += 1
        handle.check_size(request, self._cache.max_bytes)
        logger.info(
            "adapter %r: %.1f MiB in host memory after %.0f ms",
            request.name,
            handle.host_bytes / 2**20,
            (perf_counter() - start) * 1e3,
        )
        return handle

    def _weights_of(self, part: LoRARequest) -> AdapterWeights:
        """A part's weights from memory, or else from disk without staying in memory: it may not be used alone."""
        with self._changed:
            resident = self._cache.peek(part.lora_int_id)
        return self._read(part) if resident is None else resident.weights

    def _finish(self, load: _Load) -> list[tuple[Future[AdapterHandle], AdapterHandle]]:
        """End a load: a reference for all who still wait. Under the lock; results are set outside of it."""
        self._cache.stop_draining()
        served = []
        for waiter in self._leave_queue(load):
            handle = self._cache.take(load.source)
            assert handle is not None
            served.append((waiter, handle))
        if load.forgotten:
            self._cache.drop(load.source)
        return served

    def _fail(self, load: _Load, error: Exception) -> None:
        with self._changed:
            waiters = self._leave_queue(load)
            if not load.forgotten:
                self._forget_unused(adapter_ids(load.source))
        for waiter in waiters:
            waiter.set_exception(error)

    def _forget_unused(self, failed: set[int]) -> None:
        """Free the ids of a load that failed, except those that something else in memory or under way goes by."""
        used = {adapter_id for handle in self._cache.resident() for adapter_id in adapter_ids(handle.source)}
        used |= {adapter_id for source in self._loads for adapter_id in adapter_ids(source)}
        for adapter_id in failed - used:
            self._registry.forget(adapter_id)

    def _leave_queue(self, load: _Load) -> list[Future[AdapterHandle]]:
        """Stop taking new waiters; returns those who did not give up."""
        if self._loads.get(load.source) is load:
            del self._loads[load.source]
        return [waiter for waiter in load.waiters if waiter.set_running_or_notify_cancel()]


def _parts(request: AdapterRequest) -> list[LoRARequest]:
    return [request] if isinstance(request, LoRARequest) else [part for part, _ in request.parts]
