"""Loading, unloading and listing adapters of a running engine, and its figures.

Called by `LLM`, from any thread. Owns what a wrong call raises before anything is sent. Does not know where the engine
runs.
"""

from concurrent.futures import Future
from typing import cast

from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.engine.control_messages import GetStats, ListAdapters, LoadAdapter, UnloadAdapter
from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.llmapi.response_dispatcher import ResponseDispatcher
from tensorrt_lora.llmapi.sent_adapter import sent_adapter
from tensorrt_lora.lora_request import LoRARequest


class AdapterCalls:
    """Every call gives a future: the engine answers between two steps, and a load when it is done."""

    def __init__(self, dispatcher: ResponseDispatcher, *, lora_enabled: bool) -> None:
        self._dispatcher = dispatcher
        self._lora_enabled = lora_enabled

    def load(self, lora_request: LoRARequest, *, pinned: bool) -> "Future[AdapterStatus]":
        """Raises ValueError for what is no single adapter, and when LoRA is off."""
        if not isinstance(lora_request, LoRARequest):
            raise ValueError(f"an adapter is loaded by its LoRARequest, got {lora_request!r}")
        if not self._lora_enabled:
            raise ValueError(
                f"adapter {lora_request.name!r} was to be loaded, but LoRA is off: create the LLM with "
                "lora_config=LoraConfig()"
            )
        sent = sent_adapter(lora_request)
        assert isinstance(sent, LoRARequest)
        call = self._dispatcher.call(lambda call_id: LoadAdapter(call_id, sent, bool(pinned)))
        return cast("Future[AdapterStatus]", call)

    def unload(self, lora_int_id: int) -> "Future[None]":
        """Raises ValueError for what is no id."""
        if not isinstance(lora_int_id, int) or isinstance(lora_int_id, bool):
            raise ValueError(f"lora_int_id must be an integer, got {lora_int_id!r}")
        call = self._dispatcher.call(lambda call_id: UnloadAdapter(call_id, int(lora_int_id)))
        return cast("Future[None]", call)

    def list(self) -> "Future[list[AdapterStatus]]":
        return cast("Future[list[AdapterStatus]]", self._dispatcher.call(ListAdapters))

    def stats(self) -> "Future[EngineStats]":
        return cast("Future[EngineStats]", self._dispatcher.call(GetStats))
