"""From what the store keeps to what users are told of it.

Called by `AdapterStore` under its lock. Changes nothing.
"""

from collections.abc import Mapping, Sequence

from tensorrt_lora.adapters.adapter_handle import AdapterSource
from tensorrt_lora.adapters.adapter_registry import KnownAdapter
from tensorrt_lora.adapters.adapter_status import AdapterState, AdapterStatus
from tensorrt_lora.adapters.host_cache import CacheEntry
from tensorrt_lora.adapters.load_queue import AdapterLoad


def list_adapters(
    known: Mapping[int, KnownAdapter], entries: Sequence[CacheEntry], loads: Mapping[AdapterSource, AdapterLoad]
) -> list[AdapterStatus]:
    """What ids stand for, by id; then combinations, and versions that were unloaded and are still in use."""
    current = {entry.handle.source: entry for entry in entries if not entry.retired}
    statuses = [
        _status_of_id(adapter_id, meaning, current.get(adapter_id), loads.get(adapter_id))
        for adapter_id, meaning in sorted(known.items())
    ]
    return statuses + [_status_of_entry(entry) for entry in entries if entry.retired or entry.handle.parts]


def _status_of_id(
    adapter_id: int, meaning: KnownAdapter, entry: CacheEntry | None, load: AdapterLoad | None
) -> AdapterStatus:
    num_waiting = 0 if load is None else load.num_users
    if entry is not None:
        # Its name now: the content may have been in memory under another one before.
        return _status_of_entry(entry, meaning.name, meaning.path, num_waiting)
    return AdapterStatus(
        lora_int_id=adapter_id,
        name=meaning.name,
        path=meaning.path,
        version=None,
        state="evicted" if load is None else "loading",
        tier="disk",
        rank=None,
        host_bytes=0,
        users=num_waiting,
        pinned=load is not None and bool(load.pinned),
        last_used=meaning.last_used,
    )


def _status_of_entry(
    entry: CacheEntry, name: str | None = None, path: str | None = None, num_waiting: int = 0
) -> AdapterStatus:
    handle = entry.handle
    state: AdapterState = "draining" if entry.retired else "ready"
    return AdapterStatus(
        lora_int_id=handle.adapter_id,
        name=name or handle.name,
        path=path or handle.path,
        version=handle.version,
        state=state,
        tier="host",
        rank=handle.weights.max_rank,
        host_bytes=entry.nbytes,
        users=entry.references + num_waiting,
        pinned=entry.pinned,
        last_used=entry.last_used,
    )
