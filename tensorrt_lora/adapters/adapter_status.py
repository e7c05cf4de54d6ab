"""What an engine tells about an adapter that it knows.

Made by `AdapterStore`, completed by the engine, which knows what is on the device, and shown by `LLM.list_loras`. Plain
picklable data.
"""

from dataclasses import dataclass
from typing import Literal

AdapterState = Literal["loading", "ready", "evicted", "draining"]
AdapterTier = Literal["gpu", "host", "disk"]


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """One adapter, one version of it, or a combination in memory.

    Attributes:
        lora_int_id: `COMBINED_ID` (-1) for a combination.
        version: digest of the files' content; None while nothing of it is in memory.
        state: "loading" from disk; "ready" to run; "evicted": known, and read again when a request asks for it;
            "draining": unloaded, and kept until its last user is gone.
        tier: the fastest memory that holds it; "gpu" is a slot of the device, whatever device that is.
        rank: largest of any module; None while nothing of it is in memory.
        host_bytes: host memory of its weights.
        users: requests that run or wait with it; one with n > 1 sequences counts once.
        pinned: never evicted from host memory.
        last_used: when a request last asked for it, or else when it was loaded; seconds since the epoch.
    """

    lora_int_id: int
    name: str
    path: str
    version: str | None
    state: AdapterState
    tier: AdapterTier
    rank: int | None
    host_bytes: int
    users: int
    pinned: bool
    last_used: float
