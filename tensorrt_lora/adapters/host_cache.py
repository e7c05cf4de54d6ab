"""Which adapters stay in host memory.

Owns the count and byte limits, the references that requests hold, and who makes room for whom. Policy only:
no files, no threads. `AdapterStore` calls it under its lock.
"""

from collections import OrderedDict
from dataclasses import dataclass

from tensorrt_lora.adapters.adapter_handle import AdapterHandle, AdapterSource, adapter_ids
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey


@dataclass(slots=True)
class _Entry:
    handle: AdapterHandle
    nbytes: int
    references: int = 0
    # An adapter that has to make room is given to nobody new: else a stream of requests for it could keep a
    # newcomer out for ever.
    draining: bool = False


class HostCache:
    """Least recently used adapters give way; those that requests hold never do.

    Args:
        max_adapters: adapters in memory at once; None leaves it to the bytes alone.
        max_bytes: bytes of their weights.
    """

    def __init__(self, *, max_adapters: int | None, max_bytes: int) -> None:
        assert (max_adapters is None or max_adapters >= 1) and max_bytes >= 1
        self.max_adapters = max_adapters
        self.max_bytes = max_bytes
        self.num_evictions = 0
        self._current: OrderedDict[AdapterSource, _Entry] = OrderedDict()  # least recently used first
        self._retired: dict[AdapterKey, _Entry] = {}  # forgotten while requests hold them

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries())

    @property
    def num_adapters(self) -> int:
        return len(self._current) + len(self._retired)

    def resident(self) -> tuple[AdapterHandle, ...]:
        """The adapters in memory, least recently used first; retired ones are left out."""
        return tuple(entry.handle for entry in self._current.values())

    def has(self, source: AdapterSource) -> bool:
        """Whether `take` would give a handle."""
        entry = self._current.get(source)
        return entry is not None and not entry.draining

    def take(self, source: AdapterSource) -> AdapterHandle | None:
        """The adapter with one more reference; None if it is absent or has to make room."""
        if not self.has(source):
            return None
        entry = self._current[source]
        self._current.move_to_end(source)
        entry.references += 1
        return entry.handle

    def peek(self, source: AdapterSource) -> AdapterHandle | None:
        """The adapter if it is in memory, without a reference: to read its weights, not to run with it."""
        entry = self._current.get(source)
        return None if entry is None else entry.handle

    def admit(self, handle: AdapterHandle) -> bool:
        """Take in a freshly read adapter, evicting idle ones as needed; the handle for it comes from `take`.

        Content that is in memory already keeps its handle. Returns False while adapters in use leave no room;
        those longest unused then drain, and the call is to be repeated after each release.
        """
        assert handle.host_bytes <= self.max_bytes, "the store refuses what can never fit"
        assert handle.source not in self._current, "an adapter that is in memory is not read"
        entry = self._retired.pop(handle.key, None)
        if entry is None:
            if not self._make_room(handle.host_bytes):
                return False
            entry = _Entry(handle, handle.host_bytes)
        self._current[handle.source] = entry
        self.stop_draining()
        return True

    def release(self, handle: AdapterHandle) -> None:
        """Give back one reference."""
        entry = self._current.get(handle.source)
        if entry is None or entry.handle is not handle:
            entry = self._retired.get(handle.key)
        assert entry is not None and entry.references > 0, (
            f"adapter {handle.name!r} was released more often than acquired"
        )
        entry.references -= 1
        if entry.references == 0:
            self._retired.pop(handle.key, None)
            if entry.draining:
                self._evict(handle.source)

    def forget(self, adapter_id: int) -> None:
        """Give the adapter, and combinations with it, out no more; their memory is free once nobody holds them."""
        for source in [source for source in self._current if adapter_id in adapter_ids(source)]:
            self.drop(source)

    def drop(self, source: AdapterSource) -> None:
        """Give one adapter or combination out no more, if it is there."""
        entry = self._current.pop(source, None)
        if entry is not None and entry.references:
            entry.draining = False
            self._retired[entry.handle.key] = entry

    def stop_draining(self) -> None:
        """Nobody waits for room any more."""
        for entry in self._current.values():
            entry.draining = False

    def _make_room(self, nbytes: int) -> bool:
        for source in [source for source, entry in self._current.items() if not entry.references]:
            if self._fits(nbytes, self.num_adapters, self.nbytes):
                return True
            self._evict(source)
        count, used = self.num_adapters, self.nbytes
        if self._fits(nbytes, count, used):
            return True
        # Retired adapters leave anyway, so only the rest has to be drained.
        count, used = count - len(self._retired), used - sum(entry.nbytes for entry in self._retired.values())
        for entry in self._current.values():
            if self._fits(nbytes, count, used):
                break
            entry.draining = True
            count, used = count - 1, used - entry.nbytes
        return False

    def _fits(self, nbytes: int, count: int, used: int) -> bool:
        return used + nbytes <= self.max_bytes and (self.max_adapters is None or count < self.max_adapters)

    def _evict(self, source: AdapterSource) -> None:
        del self._current[source]
        self.num_evictions += 1

    def _entries(self) -> list[_Entry]:
        return [*self._current.values(), *self._retired.values()]
