"""What the front asks of a running engine beside requests: adapters to load, unload and list, and figures.

Sent by `llmapi/` through the same channel as requests, answered by one `ControlReply` each. Plain picklable data.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.lora_request import LoRARequest


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Answered with the adapter's `AdapterStatus` once it is in host memory."""

    call_id: int
    lora_request: LoRARequest
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Answered with None, at once: requests that use the adapter go on."""

    call_id: int
    lora_int_id: int


@dataclass(frozen=True, slots=True)
class ListAdapters:
    """Answered with a list of `AdapterStatus`."""

    call_id: int


@dataclass(frozen=True, slots=True)
class GetStats:
    """Answered with `EngineStats`."""

    call_id: int


ControlRequest: TypeAlias = LoadAdapter | UnloadAdapter | ListAdapters | GetStats
ControlValue: TypeAlias = AdapterStatus | list[AdapterStatus] | EngineStats | None


@dataclass(frozen=True, slots=True)
class ControlReply:
    """The answer to a call.

    Attributes:
        error: what to raise in place of returning `value`; AdapterError for an adapter that cannot be used.
    """

    call_id: int
    value: ControlValue = None
    error: ValueError | None = None
