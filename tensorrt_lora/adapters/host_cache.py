"""Which adapters stay in host memory.

Owns the count and byte limits, the references that requests hold, and who makes room for whom. Policy only:
no files, no threads. `AdapterStore` calls it under its lock.
"""

from collections import OrderedDict
from dataclasses import dataclass

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
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
        self._current: OrderedDict[int, _Entry] = OrderedDict()  # by adapter id, least recently used first
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

    def has(self, adapter_id: int) -> bool:
        """Whether `take` would give a handle."""
        entry = self._current.get(adapter_id)
        return entry is not None and not entry.draining

    def take(self, adapter_id: int) -> AdapterHandle | None:
        """The adapter with one more reference; None if it is absent or has to make room."""
        if not self.has(adapter_id):
            return None
        entry = self._current[adapter_id]
        self._current.move_to_end(adapter_id)
        entry.references += 1
        return entry.handle

    def admit(self, handle: AdapterHandle) -> bool:
        """Take in a freshly read adapter, evicting idle ones as needed; the handle for it comes from `take`.

        Content that is in memory already keeps its handle. Returns False while adapters in use leave no room;
        those longest unused then drain, and the call is to be repeated after each release.
        """
        assert handle.host_bytes <= self.max_bytes, "the store refuses what can never fit"
        assert handle.adapter_id not in self._current, "an adapter that is in memory is not read"
        entry = self._retired.pop(handle.key, None)
        if entry is None:
            if not self._make_room(handle.host_bytes):
                return False
            entry = _Entry(handle, handle.host_bytes)
        self._current[handle.adapter_id] = entry
        self.stop_draining()
        return True

    def release(self, handle: AdapterHandle) -> None:
        """Give back one reference."""
        entry = self._current.get(handle.adapter_id)
        if entry is None or entry.handle is not handle:
            entry = self._retired.get(handle.key)
        assert entry is not None and entry.references > 0, (
            f"adapter {handle.name!r} was released more often than acquired"
        )
        entry.references -= 1
        if entry.references == 0:
            self._retired.pop(handle.key, None)
            if entry.draining:
                self._evict(handle.adapter_id)

    def forget(self, adapter_id: int) -> None:
        """Give the adapter out no more; its memory is free once nobody holds it."""
        entry = self._current.pop(adapter_id, None)
        if entry is not None and entry.references:
            entry.draining = False
            self._retired[entry.handle.key] = entry

    def stop_draining(self) -> None:
        """Nobody waits for room any more."""
        for entry in self._current.values():
            entry.draining = False

    def _make_room(self, nbytes: int) -> bool:
        for adapter_id in [adapter_id for adapter_id, entry in self._current.items() if not entry.references]:
            if self._fits(nbytes, self.num_adapters, self.nbytes):
                return True
            self._evict(adapter_id)
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

    def _evict(self, adapter_id: int) -> None:
        del self._current[adapter_id]
        self.num_evictions += 1

    def _entries(self) -> list[_Entry]:
        return [*self._current.values(), *self._retired.values()]
