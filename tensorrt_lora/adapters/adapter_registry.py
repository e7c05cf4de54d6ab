"""Which adapter an id stands for.

Owns the table from ids to names and paths, so that one id never means two adapters. Asked by `AdapterStore`
under its lock.
"""

import os
from dataclasses import dataclass, field

from tensorrt_lora.lora_request import LoRARequest


@dataclass(slots=True)
class AdapterRegistry:
    """Ids need not be contiguous; 0 is an id like any other."""

    _known: dict[int, tuple[str, str]] = field(default_factory=dict)  # name and absolute path

    def register(self, *requests: LoRARequest) -> None:
        """Remember what the ids mean, all of them or none; the same meaning again is no news.

        Raises ValueError when an id already stands for another name or path, and for a relative path when there is no
        current directory. Paths are compared as absolute paths, links unresolved.
        """
        new: dict[int, tuple[str, str]] = {}
        for request in requests:
            meaning = _meaning(request)
            known = self._known.get(request.lora_int_id) or new.setdefault(request.lora_int_id, meaning)
            if known != meaning:
                raise ValueError(
                    f"lora_int_id {request.lora_int_id} already stands for adapter {known[0]!r} "
                    f"({known[1]}), it cannot also stand for {request.lora_name!r} ({request.lora_path}); "
                    "give each adapter an id of its own"
                )
        self._known.update(new)

    def forget(self, adapter_id: int) -> None:
        """Free an id for another adapter; nothing happens if it is not known."""
        self._known.pop(adapter_id, None)


def _meaning(request: LoRARequest) -> tuple[str, str]:
    try:
        return request.lora_name, os.path.abspath(request.lora_path)
    except OSError as error:
        raise ValueError(
            f"lora_path of adapter {request.lora_name!r} is relative ({request.lora_path}), and the current directory "
            "is gone; give an absolute path"
        ) from error
