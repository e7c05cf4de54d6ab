"""Which adapters stay in host memory.

Owns the count and byte limits, the references that requests hold, and who makes room for whom. Policy only:
no files, no threads. `AdapterStore` and its `LoaderThreads` call it under the store's lock.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from tensorrt_lora.adapters.adapter_handle import AdapterHandle, AdapterSource, adapter_ids
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey


@dataclass(slots=True)
class CacheEntry:
    """One version of an adapter in memory.

    Attributes:
        last_used: when it was taken last, or else admitted; seconds since the epoch.
        draining: it has to make room and is given to nobody new: else a stream of requests for it could keep a
            newcomer out for ever.
        retired: forgotten while requests hold it.
    """

    handle: AdapterHandle
    nbytes: int
    last_used: float
    references: int = 0
    pinned: bool = False
    draining: bool = False
    retired: bool = False


class HostCache:
    """Least recently used adapters give way; those that are pinned or that requests hold never do.

    Args:
        max_adapters: adapters in memory at once; None leaves it to the bytes alone.
        max_bytes: bytes of their weights.
    """

    def __init__(self, *, max_adapters: int | None, max_bytes: int) -> None:
        assert (max_adapters is None or max_adapters >= 1) and max_bytes >= 1
        self.max_adapters = max_adapters
        self.max_bytes = max_bytes
        self.num_evictions = 0
        self._entries: OrderedDict[AdapterKey, CacheEntry] = OrderedDict()  # least recently used first
        self._current: dict[AdapterSource, CacheEntry] = {}  # those that are not retired
        self._gone: set[AdapterKey] = set()

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries.values())

    @property
    def num_adapters(self) -> int:
        return len(self._entries)

    def entries(self) -> tuple[CacheEntry, ...]:
        """All that is in memory, least recently used first; to look at, not to change."""
        return tuple(self._entries.values())

    def resident(self) -> tuple[AdapterHandle, ...]:
        """The adapters in memory, least recently used first; retired ones are left out."""
        return tuple(entry.handle for entry in self._entries.values() if not entry.retired)

    def has(self, source: AdapterSource) -> bool:
        """Whether `take` would give a handle."""
        entry = self._current.get(source)
        return entry is not None and not entry.draining

    def take(self, source: AdapterSource) -> AdapterHandle | None:
        """The adapter with one more reference; None if it is absent or has to make room."""
        if not self.has(source):
            return None
        entry = self._current[source]
        self._entries.move_to_end(entry.handle.key)
        entry.references += 1
        entry.last_used = time.time()
        return entry.handle

    def peek(self, source: AdapterSource) -> AdapterHandle | None:
        """The adapter if it is in memory, without a reference: to read its weights, not to run with it."""
        entry = self._current.get(source)
        return None if entry is None else entry.handle

    def pin(self, source: AdapterSource, pinned: bool) -> None:
        """Keep an adapter for good, also one that is to make room, or no longer; nothing happens if it is absent."""
        entry = self._current.get(source)
        if entry is not None:
            entry.pinned = pinned
            entry.draining &= not pinned

    def lack_of_room(self, handle: AdapterHandle) -> str | None:
        """Why `admit` will be in vain whatever is released, as a text for users; None if it will not."""
        pinned = [entry for entry in self._current.values() if entry.pinned]
        if self.max_adapters is not None and len(pinned) >= self.max_adapters:
            return (
                f"{len(pinned)} pinned adapters take all of max_cpu_loras={self.max_adapters}; unload one or raise it"
            )
        left = self.max_bytes - sum(entry.nbytes for entry in pinned)
        if handle.host_bytes > left:
            return (
                f"it takes {handle.host_bytes} bytes of host memory, but pinned adapters leave {left} of "
                f"peft_cache_config.host_cache_size={self.max_bytes}; unload one, or raise it to "
                f"{self.max_bytes - left + handle.host_bytes} or more"
            )
        return None

    def admit(self, handle: AdapterHandle, ahead: Sequence[AdapterHandle] = ()) -> bool:
        """Take in a freshly read adapter, evicting idle ones as needed; the handle for it comes from `take`.

        Content that is in memory already keeps its handle. Returns False while adapters in use leave no room;
        those longest unused then drain, and the call is to be repeated after each release.

        Args:
            ahead: adapters that wait for room already. Behind them one gets in only where it delays none of them.
        """
        assert handle.host_bytes <= self.max_bytes, "the store refuses what can never fit"
        assert handle.source not in self._current, "an adapter that is in memory is not read"
        entry = self._entries.get(handle.key)
        if entry is None:
            if not (self._fits_beside(handle, ahead) if ahead else self._make_room(handle.host_bytes)):
                return False
            entry = self._entries[handle.key] = CacheEntry(handle, handle.host_bytes, time.time())
        entry.retired = False
        self._current[handle.source] = entry
        if not ahead:
            self.stop_draining()
        return True

    def release(self, handle: AdapterHandle) -> None:
        """Give back one reference."""
        entry = self._entries.get(handle.key)
        assert entry is not None and entry.handle is handle and entry.references > 0, (
            f"adapter {handle.name!r} was released more often than acquired"
        )
        entry.references -= 1
        if entry.references == 0 and (entry.retired or entry.draining):
            self._remove(entry)

    def forget(self, adapter_id: int) -> None:
        """Give the adapter, and combinations with it, out no more; their memory is free once nobody holds them."""
        for source in [source for source in self._current if adapter_id in adapter_ids(source)]:
            self.drop(source)

    def drop(self, source: AdapterSource) -> None:
        """Give one adapter or combination out no more, if it is there."""
        entry = self._current.pop(source, None)
        if entry is not None:
            entry.retired, entry.draining, entry.pinned = True, False, False
            if not entry.references:
                self._remove(entry)

    def stop_draining(self) -> None:
        """Nobody waits for room any more."""
        for entry in self._current.values():
            entry.draining = False

    def take_gone(self) -> list[AdapterKey]:
        """What left memory since the last call and did not come back."""
        gone = [key for key in self._gone if key not in self._entries]
        self._gone.clear()
        return gone

    def _make_room(self, nbytes: int) -> bool:
        idle = [entry for entry in self._entries.values() if not entry.references and not entry.pinned]
        for entry in idle:
            if self._fits(nbytes, self.num_adapters, self.nbytes):
                return True
            self._remove(entry)
        count, used = self.num_adapters, self.nbytes
        if self._fits(nbytes, count, used):
            return True
        # Retired adapters leave anyway, so only the rest has to be drained.
        leaving = [entry for entry in self._entries.values() if entry.retired]
        count, used = count - len(leaving), used - sum(entry.nbytes for entry in leaving)
        for entry in self._entries.values():
            if self._fits(nbytes, count, used):
                break
            if not entry.retired and not entry.pinned:
                entry.draining = True
                count, used = count - 1, used - entry.nbytes
        return False

    def _fits_beside(self, handle: AdapterHandle, ahead: Sequence[AdapterHandle]) -> bool:
        """Whether there is room now, and still will be when what leaves has left and those ahead have come."""
        staying = [entry for entry in self._entries.values() if not (entry.retired or entry.draining)]
        count = len(staying) + len(ahead)
        used = sum(entry.nbytes for entry in staying) + sum(other.host_bytes for other in ahead)
        return self._fits(handle.host_bytes, self.num_adapters, self.nbytes) and self._fits(
            handle.host_bytes, count, used
        )

    def _fits(self, nbytes: int, count: int, used: int) -> bool:
        return used + nbytes <= self.max_bytes and (self.max_adapters is None or count < self.max_adapters)

    def _remove(self, entry: CacheEntry) -> None:
        """Let go of an adapter that nobody holds."""
        del self._entries[entry.handle.key]
        self._gone.add(entry.handle.key)
        if not entry.retired:
            del self._current[entry.handle.source]
            self.num_evictions += 1
