"""What the scheduler asks before it starts a request: do its adapter and those that run fit on the device
together?

Answered by `AdapterSlotManager`. The scheduler knows no slots, pages or weights.
"""

from collections.abc import Collection
from typing import Protocol

from tensorrt_lora.lora.adapter_slot_manager import SlotTenant


class AdapterCapacity(Protocol):
    """The scheduler's view of the adapter slots.

    The answer must depend on the arguments alone, and may turn from yes to no, never back, as `active` grows.
    """

    def can_admit(self, active: Collection[SlotTenant], candidate: SlotTenant) -> bool:
        """Whether `candidate` fits beside the distinct adapters of `active`; base is never among them."""
        ...


class BaseOnlyCapacity:
    """An engine without LoRA: no adapter ever fits."""

    def can_admit(self, active: Collection[SlotTenant], candidate: SlotTenant) -> bool:
        return False
