"""Which adapter sits in which slot, and on which pages. Policy only: no tensors, no requests.

The engine asks `can_admit` before it starts a request, and `assign` before each forward; what `assign` returns must be
copied to the device before that forward. `reserve` and `settle` are for adapters that are copied ahead of their first
forward, in parts. Base rows take no slot.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar


class AdapterKey(NamedTuple):
    """Identity of loaded weights: the same id with new content is another adapter."""

    adapter_id: int
    version: str


class SlotTenant(Protocol):
    """What the slot manager must know of an adapter."""

    @property
    def key(self) -> AdapterKey: ...

    @property
    def num_pages(self) -> int: ...


Tenant = TypeVar("Tenant", bound=SlotTenant)


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot in use and the pages of rank rows that belong to it."""

    index: int
    pages: tuple[int, ...]


class AdapterSlotManager:
    """Least recently used adapters give way; the adapters of the batch at hand never do.

    Args:
        num_slots: distinct adapters that can be on the device at once.
        num_pages: pages of rank rows that all slots share.
    """

    def __init__(self, *, num_slots: int, num_pages: int) -> None:
        assert num_slots >= 1 and num_pages >= 1
        self.num_slots = num_slots
        self.num_pages = num_pages
        self.num_evictions = 0
        self._slots: OrderedDict[AdapterKey, Slot] = OrderedDict()  # least recently used first
        self._reserved: dict[AdapterKey, Slot] = {}
        self._free_slots = list(range(num_slots))[::-1]
        self._free_pages = list(range(num_pages))[::-1]

    def can_admit(self, active: Collection[SlotTenant], candidate: SlotTenant) -> bool:
        """Whether `candidate` fits on the device together with the distinct adapters of `active`."""
        tenants = {tenant.key: tenant.num_pages for tenant in (*active, candidate)}
        return len(tenants) <= self.num_slots and sum(tenants.values()) <= self.num_pages

    def assign(self, batch: Iterable[Tenant]) -> list[tuple[Tenant, Slot]]:
        """Give every adapter of the batch a slot; returns those that were not on the device yet.

        Residents are touched before newcomers are placed, so a newcomer never evicts an adapter of its own batch.
        """
        tenants = {tenant.key: tenant for tenant in batch}
        for key in tenants:
            if key in self._slots:
                self._slots.move_to_end(key)
        newcomers = [tenant for key, tenant in tenants.items() if key not in self._slots]
        placed = []
        for tenant in newcomers:
            self.remove(tenant.key)  # what is reserved for it may hold a part of it only
            while not self._fits(tenant):
                victim = self._victim(tenants.keys()) or next(iter(self._reserved), None)
                assert victim is not None, "the scheduler admitted more adapters than the slots can hold"
                self._evict(victim)
            slot = self._slots[tenant.key] = self._take(tenant)
            placed.append((tenant, slot))
        return placed

    def reserve(self, tenant: SlotTenant, protected: Collection[AdapterKey]) -> Slot | None:
        """A slot for an adapter that will be copied to it bit by bit; it is not on the device until `settle`.

        None if there is none without those of `protected` and of other reservations. `assign` takes a reserved slot
        away where it is short.
        """
        assert tenant.key not in self._slots and tenant.key not in self._reserved
        evictable = [slot for key, slot in self._slots.items() if key not in protected]
        num_pages = len(self._free_pages) + sum(len(slot.pages) for slot in evictable)
        if not (self._free_slots or evictable) or num_pages < tenant.num_pages:
            return None
        while not self._fits(tenant):
            victim = self._victim(protected)
            assert victim is not None
            self._evict(victim)
        slot = self._reserved[tenant.key] = self._take(tenant)
        return slot

    def reserved(self, key: AdapterKey) -> Slot | None:
        """The adapter's reserved slot, unless it was taken away or settled."""
        return self._reserved.get(key)

    def settle(self, key: AdapterKey) -> None:
        """What was copied to a reserved slot is complete: the adapter is on the device."""
        self._slots[key] = self._reserved.pop(key)

    def slot_of(self, key: AdapterKey) -> int:
        """The slot index of an adapter that `assign` has placed."""
        return self._slots[key].index

    def resident(self) -> tuple[AdapterKey, ...]:
        """The adapters on the device, least recently used first."""
        return tuple(self._slots)

    def remove(self, key: AdapterKey) -> None:
        """Free an adapter's slot and pages, reserved ones too; nothing happens if it holds none."""
        slot = self._slots.pop(key, None) or self._reserved.pop(key, None)
        if slot is not None:
            self._free_slots.append(slot.index)
            self._free_pages.extend(reversed(slot.pages))

    def _fits(self, tenant: SlotTenant) -> bool:
        return bool(self._free_slots) and len(self._free_pages) >= tenant.num_pages

    def _take(self, tenant: SlotTenant) -> Slot:
        pages = tuple(self._free_pages.pop() for _ in range(tenant.num_pages))
        return Slot(self._free_slots.pop(), pages)

    def _victim(self, protected: Collection[AdapterKey]) -> AdapterKey | None:
        return next((key for key in self._slots if key not in protected), None)

    def _evict(self, key: AdapterKey) -> None:
        self.num_evictions += key in self._slots
        self.remove(key)
