"""Which adapter an id stands for.

Owns the table from ids to names and paths, so that one id never means two adapters, and which ids were unloaded. Asked
by `AdapterStore` and its `LoaderThreads` under the store's lock.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.lora_request import LoRARequest

_MAX_UNLOADED = 10_000  # ids remembered, so that those of a long-lived server do not pile up


@dataclass(slots=True)
class KnownAdapter:
    """What an id stands for, and when a request last asked for it (seconds since the epoch)."""

    name: str
    path: str  # absolute
    last_used: float


@dataclass(slots=True)
class AdapterRegistry:
    """Ids need not be contiguous; 0 is an id like any other."""

    _known: dict[int, KnownAdapter] = field(default_factory=dict)
    _unloaded: OrderedDict[int, None] = field(default_factory=OrderedDict)  # the oldest first

    @property
    def known(self) -> Mapping[int, KnownAdapter]:
        return self._known

    def register(self, *requests: LoRARequest, revive: bool = False) -> None:
        """Remember what the ids mean, all of them or none; the same meaning again is no news.

        Paths are compared as absolute paths, links unresolved.

        Args:
            revive: ids that were unloaded may be used again.

        Raises AdapterError when an id already stands for another name or path or was unloaded, and for a relative path
        when there is no current directory.
        """
        now = time.time()
        new: dict[int, KnownAdapter] = {}
        for request in requests:
            adapter_id = request.lora_int_id
            if adapter_id in self._unloaded and not revive:
                problem = f"lora_int_id {adapter_id} was unloaded; load it again to use it"
                raise AdapterError(request.lora_name, request.lora_path, [problem], "unloaded")
            path = _absolute_path(request)
            known = self._known.get(adapter_id) or new.setdefault(
                adapter_id, KnownAdapter(request.lora_name, path, now)
            )
            if (known.name, known.path) != (request.lora_name, path):
                problem = (
                    f"lora_int_id {adapter_id} already stands for adapter {known.name!r} ({known.path}), it cannot "
                    f"also stand for {request.lora_name!r} ({request.lora_path}); give each adapter an id of its own"
                )
                raise AdapterError(request.lora_name, request.lora_path, [problem], "id_conflict")
        self._known.update(new)
        for request in requests:
            self._known[request.lora_int_id].last_used = now
            self._unloaded.pop(request.lora_int_id, None)

    def forget(self, adapter_id: int) -> None:
        """Free an id for another adapter; nothing happens if it is not known."""
        self._known.pop(adapter_id, None)

    def unload(self, adapter_id: int) -> KnownAdapter:
        """Free an id, and refuse it until it is revived. Raises ValueError when it stands for nothing."""
        known = self._known.pop(adapter_id, None)
        if known is None:
            raise ValueError(f"lora_int_id {adapter_id} stands for no adapter; list_loras() has those that are known")
        self._unloaded[adapter_id] = None
        if len(self._unloaded) > _MAX_UNLOADED:
            self._unloaded.popitem(last=False)
        return known


def _absolute_path(request: LoRARequest) -> str:
    try:
        return os.path.abspath(request.lora_path)
    except OSError as error:
        problem = (
            f"lora_path of adapter {request.lora_name!r} is relative ({request.lora_path}), and the current directory "
            "is gone; give an absolute path"
        )
        raise AdapterError(request.lora_name, request.lora_path, [problem]) from error
