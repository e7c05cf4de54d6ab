"""The engine's side of loading and unloading: replies, slots, and what goes wrong while reading."""

from collections.abc import Iterator
from concurrent.futures import wait

import pytest
import torch

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.adapters.adapter_store import AdapterStore
from tensorrt_lora.engine.adapter_control import AdapterControl
from tensorrt_lora.engine.control_messages import ControlReply, ListAdapters, LoadAdapter, UnloadAdapter
from tensorrt_lora.lora.adapter_slot_manager import AdapterSlotManager
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora_request import LoRARequest

TIMEOUT = 30
ONE, BROKEN = LoRARequest("one", 1, "/one"), LoRARequest("broken", 2, "/broken")


def read(request: LoRARequest) -> AdapterWeights:
    if request.name == "broken":
        raise MemoryError("no page-locked memory")
    module = LoraModuleWeights(torch.ones(2, 8), torch.ones(2, 8), 1.0)
    return AdapterWeights(request.name, "v1", {(0, LoraModuleType.ATTENTION_Q): module})


@pytest.fixture
def store() -> Iterator[AdapterStore]:
    store = AdapterStore(read, max_adapters=None, max_bytes=2**20)
    yield store
    store.close()


@pytest.fixture
def slots() -> AdapterSlotManager:
    return AdapterSlotManager(num_slots=2, num_pages=2)


@pytest.fixture
def control(store: AdapterStore, slots: AdapterSlotManager) -> AdapterControl:
    return AdapterControl(store, slots)


def load(control: AdapterControl, request: LoRARequest) -> ControlReply:
    assert control.take(LoadAdapter(5, request)) is None
    wait(control.pending, TIMEOUT)
    [reply] = control.take_replies()
    assert reply.call_id == 5 and not control.pending and not control.take_replies()
    return reply


def place(store: AdapterStore, slots: AdapterSlotManager, request: LoRARequest) -> AdapterHandle:
    handle = store.acquire(request).result(TIMEOUT)
    slots.assign([handle])
    return handle


def test_tiers_follow_the_slots(control: AdapterControl, store: AdapterStore, slots: AdapterSlotManager):
    status = load(control, ONE).value
    assert (status.name, status.tier, status.rank, status.users) == ("one", "host", 2, 0)
    handle = place(store, slots, ONE)
    listed = control.take(ListAdapters(6))
    assert listed is not None and [(one.tier, one.users) for one in listed.value] == [("gpu", 1)]
    store.release(handle)


def test_the_slot_is_free_once_the_last_user_is_gone(
    control: AdapterControl, store: AdapterStore, slots: AdapterSlotManager
):
    handle = place(store, slots, ONE)
    assert control.take(UnloadAdapter(6, 1)) == ControlReply(6)
    control.free_slots()
    assert slots.resident() == (handle.key,)
    store.release(handle)
    control.free_slots()
    assert slots.resident() == ()


def test_content_that_comes_back_keeps_its_slot(
    control: AdapterControl, store: AdapterStore, slots: AdapterSlotManager
):
    store.release(place(store, slots, ONE))
    control.take(UnloadAdapter(6, 1))
    load(control, ONE)
    control.free_slots()
    assert len(slots.resident()) == 1


def test_a_fault_of_the_reader_is_that_adapters_alone(control: AdapterControl):
    error = load(control, BROKEN).error
    assert isinstance(error, AdapterError) and error.kind == "failed"
    assert str(error) == "adapter 'broken' (/broken): MemoryError: no page-locked memory"
    assert load(control, ONE).error is None


def test_an_adapter_that_was_unloaded_before_its_load_was_told(control: AdapterControl, store: AdapterStore):
    control.take(LoadAdapter(5, ONE))
    wait(control.pending, TIMEOUT)
    control.take(UnloadAdapter(6, 1))
    [reply] = control.take_replies()
    assert isinstance(reply.error, AdapterError) and reply.error.kind == "unloaded"


@pytest.mark.parametrize("message", [LoadAdapter(5, ONE), UnloadAdapter(5, 1)])
def test_without_lora_there_is_nothing_to_load(message: LoadAdapter | UnloadAdapter):
    control = AdapterControl(None, None)
    reply = control.take(message)
    assert reply is not None and "runs without LoRA" in str(reply.error)
    assert control.take(ListAdapters(6)) == ControlReply(6, [])
