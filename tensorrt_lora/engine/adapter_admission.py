"""Which adapters may start in one scheduling round, and who may overtake whom for want of a slot.

Made by the scheduler for each round. Knows neither pages nor tokens.
"""

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.engine.adapter_capacity import AdapterCapacity
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey


class AdapterAdmission:
    """One round's bookkeeping; the scheduler walks the waiting requests in arrival order.

    Args:
        active: the distinct adapters of all running requests.
        round_index: counts up with each round.
        max_wait: rounds for which a request may be overtaken, from the first time on.
    """

    def __init__(
        self,
        capacity: AdapterCapacity,
        active: dict[AdapterKey, AdapterHandle],
        *,
        round_index: int,
        max_wait: int,
    ) -> None:
        self._capacity = capacity
        self._active = active
        self._refused: set[AdapterKey] = set()
        self._round_index = round_index
        self._max_wait = max_wait
        self._passed_over: list[LlmRequest] = []

    def fits(self, request: LlmRequest) -> bool:
        """Whether the request's adapter has room beside the active ones; base requests need none."""
        adapter = request.adapter
        if adapter is None or adapter.key in self._active:
            return True
        # The active adapters only become more within a round, so a refusal stands until its end.
        if adapter.key not in self._refused and self._capacity.can_admit(self._active.values(), adapter):
            return True
        self._refused.add(adapter.key)
        return False

    def pass_over(self, request: LlmRequest) -> bool:
        """Leave a request that does not fit waiting; False if nobody behind it may start any more."""
        since = request.overtaken_since
        waited = 0 if since is None else self._round_index - since
        if waited >= self._max_wait:
            return False
        self._passed_over.append(request)
        return True

    def start(self, request: LlmRequest) -> None:
        """Count a request that starts now: its adapter is active, and it has overtaken those passed over."""
        if request.adapter is not None:
            self._active[request.adapter.key] = request.adapter
        for other in self._passed_over:
            if other.overtaken_since is None:
                other.overtaken_since = self._round_index
        self._passed_over.clear()
