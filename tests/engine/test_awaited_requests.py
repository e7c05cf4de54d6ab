"""Requests between the front and the scheduler: when they leave, in what order, and what they leave behind."""

from collections.abc import Iterator
from concurrent.futures import wait

import pytest
import torch

from tensorrt_lora.adapters.adapter_store import AdapterStore
from tensorrt_lora.engine.awaited_requests import AwaitedRequests
from tensorrt_lora.engine.generation_request import GenerationRequest
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams

TIMEOUT = 30
ONE, TWO, BROKEN = (LoRARequest(name, number, f"/{name}") for number, name in enumerate(("one", "two", "broken")))
ACTIVE = {AdapterKey(7, "v1"): None}


def read(request: LoRARequest) -> AdapterWeights:
    if request is BROKEN:
        raise MemoryError("no page-locked memory")
    module = LoraModuleWeights(torch.ones(2, 8), torch.ones(2, 8), 1.0)
    return AdapterWeights(request.name, request.name, {(0, LoraModuleType.ATTENTION_Q): module})


class Uploads:
    """In place of `SlotUploads`: says that those are on the device whose ids it was given."""

    def __init__(self) -> None:
        self.on_device: set[int] = set()
        self.has_any = False
        self.calls: list[tuple[set[int], bool]] = []

    def advance(self, wanted, active, *, is_idle):
        assert active is ACTIVE
        self.calls.append(({key.adapter_id for key in wanted}, is_idle))
        return {key for key in wanted if key.adapter_id in self.on_device}


class Running:
    active_adapters = ACTIVE


@pytest.fixture
def store() -> Iterator[AdapterStore]:
    store = AdapterStore(read, max_adapters=None, max_bytes=2**20)
    yield store
    store.close()


@pytest.fixture
def uploads() -> Uploads:
    return Uploads()


@pytest.fixture
def awaited(store: AdapterStore, uploads: Uploads) -> AwaitedRequests:
    return AwaitedRequests(store, uploads, Running())


def add(awaited: AwaitedRequests, *adapters: LoRARequest) -> None:
    """Requests 0, 1, ... for these, with their adapters in memory, or failed."""
    for number, adapter in enumerate(adapters):
        awaited.add(GenerationRequest(number, [1], SamplingParams(), adapter), arrival=10 + number)
    assert not wait(awaited.pending, TIMEOUT).not_done


def references(store: AdapterStore) -> dict[str, int]:
    return {status.name: status.users for status in store.statuses()}


def test_what_failed_leaves_at_once_and_the_rest_from_the_device(awaited: AwaitedRequests, uploads: Uploads):
    add(awaited, ONE, TWO, BROKEN, TWO)
    failed, ready = awaited.take_arrived(is_idle=False)
    assert [request.message.request_id for request in failed] == [2] and not ready
    assert isinstance(failed[0].handle.exception(), MemoryError)
    assert len(awaited) == len(awaited.pending) == 3
    uploads.on_device = {TWO.lora_int_id}
    failed, ready = awaited.take_arrived(is_idle=True)
    assert not failed and [(request.message.request_id, request.arrival) for request in ready] == [(1, 11), (3, 13)]
    assert [request.handle.result().name for request in ready] == ["two", "two"]
    uploads.on_device = {ONE.lora_int_id}
    failed, ready = awaited.take_arrived(is_idle=False)
    assert not failed and [request.message.request_id for request in ready] == [0]
    assert not awaited and awaited.pending == []
    assert uploads.calls == [({0, 1}, False), ({0, 1}, True), ({0}, False)]


def test_what_was_cancelled_leaves_no_reference(awaited: AwaitedRequests, store: AdapterStore):
    add(awaited, ONE, TWO, ONE)
    assert references(store) == {"one": 2, "two": 1}
    assert awaited.cancel(2) and not awaited.cancel(2) and not awaited.cancel(99)
    assert len(awaited) == 2 and references(store) == {"one": 1, "two": 1}


def test_uploads_are_called_while_there_is_something_to_copy_or_to_give_up(awaited: AwaitedRequests, uploads: Uploads):
    assert awaited.take_arrived(is_idle=False) == ([], []) and not uploads.calls
    add(awaited, ONE)
    awaited.take_arrived(is_idle=False)
    awaited.cancel(0)
    uploads.has_any = True
    assert awaited.take_arrived(is_idle=False) == ([], [])
    assert uploads.calls == [({0}, False), (set(), False)]
    uploads.has_any = False
    awaited.take_arrived(is_idle=False)
    assert len(uploads.calls) == 2


def test_without_lora_nobody_waits():
    awaited = AwaitedRequests(None, None, Running())
    assert awaited.take_arrived(is_idle=True) == ([], []) and not awaited.cancel(0) and not awaited
