import random
from dataclasses import dataclass

import pytest

from tensorrt_lora.lora.adapter_slot_manager import AdapterKey, AdapterSlotManager


@dataclass(frozen=True)
class Tenant:
    key: AdapterKey
    num_pages: int


def tenant(adapter_id: int, num_pages: int = 1, version: str = "v1") -> Tenant:
    return Tenant(AdapterKey(adapter_id, version), num_pages)


def test_a_resident_adapter_keeps_its_slot_and_is_not_loaded_again():
    manager = AdapterSlotManager(num_slots=2, num_pages=2)
    (placed,) = manager.assign([tenant(1)])
    assert manager.assign([tenant(1)]) == []
    assert manager.slot_of(tenant(1).key) == placed[1].index


def test_the_least_recently_used_adapter_gives_way():
    manager = AdapterSlotManager(num_slots=2, num_pages=2)
    manager.assign([tenant(1), tenant(2)])
    manager.assign([tenant(1)])
    manager.assign([tenant(3)])
    assert manager.resident() == (tenant(1).key, tenant(3).key)


def test_a_newcomer_never_evicts_an_adapter_of_its_own_batch():
    manager = AdapterSlotManager(num_slots=2, num_pages=2)
    manager.assign([tenant(1), tenant(2)])
    manager.assign([tenant(3), tenant(1)])  # 1 is the least recently used, but the batch needs it
    assert set(manager.resident()) == {tenant(1).key, tenant(3).key}


def test_pages_bind_as_well_as_slots():
    manager = AdapterSlotManager(num_slots=4, num_pages=5)
    big = tenant(1, num_pages=4)
    assert manager.can_admit([big], tenant(2, num_pages=1))
    assert not manager.can_admit([big], tenant(2, num_pages=2))
    manager.assign([big, tenant(2)])
    manager.assign([tenant(3, num_pages=4)])
    assert tenant(1, num_pages=4).key not in manager.resident()


def test_the_same_id_with_new_content_is_another_adapter():
    manager = AdapterSlotManager(num_slots=2, num_pages=2)
    manager.assign([tenant(1)])
    placed = manager.assign([tenant(1), tenant(1, version="v2")])
    assert [newcomer.key.version for newcomer, _ in placed] == ["v2"]


def test_an_adapter_counted_twice_takes_one_slot():
    manager = AdapterSlotManager(num_slots=1, num_pages=1)
    assert manager.can_admit([tenant(1), tenant(1)], tenant(1))
    assert len(manager.assign([tenant(1), tenant(1)])) == 1


def test_more_adapters_in_a_batch_than_slots_is_our_own_error():
    manager = AdapterSlotManager(num_slots=1, num_pages=2)
    with pytest.raises(AssertionError, match="more adapters than the slots can hold"):
        manager.assign([tenant(1), tenant(2)])


def test_random_batches_never_share_a_slot_or_a_page():
    rng = random.Random(0)
    tenants = [tenant(i, num_pages=rng.randint(1, 4)) for i in range(12)]
    manager = AdapterSlotManager(num_slots=4, num_pages=9)
    held: dict[AdapterKey, tuple[int, tuple[int, ...]]] = {}
    for _ in range(500):
        batch: list[Tenant] = []
        for candidate in rng.sample(tenants, 4):
            if manager.can_admit(batch, candidate):
                batch.append(candidate)
        for newcomer, slot in manager.assign(batch):
            assert len(slot.pages) == newcomer.num_pages
            held[newcomer.key] = (slot.index, slot.pages)
        held = {key: held[key] for key in manager.resident()}
        slots = [index for index, _ in held.values()]
        pages = [page for _, owned in held.values() for page in owned]
        assert len(set(slots)) == len(slots) and len(set(pages)) == len(pages)
        assert all(manager.slot_of(t.key) == held[t.key][0] for t in batch)
        if rng.random() < 0.1:
            manager.remove(rng.choice(tenants).key)


def test_a_reserved_slot_is_on_the_device_once_it_is_settled():
    slots = AdapterSlotManager(num_slots=2, num_pages=2)
    one = tenant(1)
    slot = slots.reserve(one, ())
    assert slot is not None and slots.reserved(one.key) is slot and slots.resident() == ()
    slots.settle(one.key)
    assert slots.reserved(one.key) is None and slots.resident() == (one.key,)
    assert slots.assign([one]) == [] and slots.slot_of(one.key) == slot.index


def test_a_reservation_evicts_what_is_not_protected():
    slots = AdapterSlotManager(num_slots=2, num_pages=2)
    one, two, three, four = (tenant(number) for number in range(4))
    slots.assign([one, two])
    assert slots.reserve(three, {one.key, two.key}) is None
    assert slots.resident() == (one.key, two.key)
    assert slots.reserve(three, {one.key}) is not None
    assert slots.resident() == (one.key,)
    assert slots.reserve(four, {one.key}) is None  # reservations do not take each other's
    assert slots.num_evictions == 1


def test_a_forward_takes_back_what_is_reserved():
    slots = AdapterSlotManager(num_slots=2, num_pages=2)
    one, two, three = (tenant(number) for number in range(3))
    slots.assign([one])
    slots.reserve(two, {one.key})
    [(placed, _)] = slots.assign([two])  # half of it may be there
    assert placed is two and slots.reserved(two.key) is None
    slots.remove(two.key)
    slots.reserve(two, {one.key})
    assert [tenant for tenant, _ in slots.assign([one, three])] == [three]
    assert slots.reserved(two.key) is None and set(slots.resident()) == {one.key, three.key}
    slots.remove(one.key)
    slots.remove(three.key)
    slots.reserve(two, ())
    slots.remove(two.key)
    assert slots.reserved(two.key) is None and len(slots.assign([one, three])) == 2
