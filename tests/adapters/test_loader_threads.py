"""The threads with nothing but what they share with the store. Waits are bounded: a hang is a failure."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
import torch

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.adapters.adapter_registry import AdapterRegistry
from tensorrt_lora.adapters.adapter_source_reader import AdapterSourceReader
from tensorrt_lora.adapters.host_cache import HostCache
from tensorrt_lora.adapters.load_queue import LoadQueue
from tensorrt_lora.adapters.loader_threads import LoaderThreads
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora_request import LoRARequest

TIMEOUT = 30
ONE, TWO, THREE = (LoRARequest(f"a{number}", number, f"/a{number}") for number in (1, 2, 3))


def read(request: LoRARequest) -> AdapterWeights:
    if request is THREE:
        raise AdapterError(request.name, request.path, ["no such directory"])
    module = LoraModuleWeights(torch.ones(2, 8), torch.ones(2, 8), 1.0)
    return AdapterWeights(request.name, request.name, {(0, LoraModuleType.ATTENTION_Q): module})


class Shared:
    """What the store would own, with room for one adapter."""

    def __init__(self) -> None:
        self.cache = HostCache(max_adapters=1, max_bytes=2**20)
        self.registry = AdapterRegistry()
        self.queue = LoadQueue()
        self.changed = threading.Condition()

    def start_threads(self) -> LoaderThreads:
        reader = AdapterSourceReader(read, None, self.cache.peek, max_bytes=2**20)
        return LoaderThreads(reader, self.registry, self.cache, self.queue, self.changed, num_threads=2)

    def ask(self, request: LoRARequest) -> Future[AdapterHandle]:
        waiter: Future[AdapterHandle] = Future()
        with self.changed:
            self.registry.register(request)
            self.queue.join(request).users.append(waiter)
            self.changed.notify_all()
        return waiter


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def threads(shared: Shared):
    threads = shared.start_threads()
    yield threads
    threads.close()


def test_what_joined_before_the_threads_started_is_served_too(shared: Shared):
    before = shared.ask(ONE)
    threads = shared.start_threads()
    handle = before.result(TIMEOUT)
    assert handle.name == "a1" and shared.cache.resident() == (handle,)
    assert [entry.references for entry in shared.cache.entries()] == [1]
    threads.close()


def test_a_thread_waits_for_room_until_it_is_told(shared: Shared, threads: LoaderThreads):
    first = shared.ask(ONE).result(TIMEOUT)
    second = shared.ask(TWO)
    with shared.changed:
        assert not second.done()
        shared.cache.release(first)
        shared.changed.notify_all()
    assert second.result(TIMEOUT).name == "a2"
    assert [handle.name for handle in shared.cache.resident()] == ["a2"]


def test_the_id_of_a_load_that_failed_is_free(shared: Shared, threads: LoaderThreads):
    shared.ask(ONE).result(TIMEOUT)
    with pytest.raises(AdapterError, match="no such directory"):
        shared.ask(THREE).result(TIMEOUT)
    with shared.changed:
        assert list(shared.registry.known) == [1] and not shared.queue.joinable


def ask_none(shared: Shared) -> list[Future[AdapterHandle]]:
    return []


def ask_more_than_there_is_room_for(shared: Shared) -> list[Future[AdapterHandle]]:
    shared.ask(ONE).result(TIMEOUT)
    return [shared.ask(request) for request in (TWO, LoRARequest("a4", 4, "/a4"), LoRARequest("a5", 5, "/a5"))]


@pytest.mark.parametrize("ask", [ask_none, ask_more_than_there_is_room_for])
def test_closing_ends_threads_and_waits(shared: Shared, ask: Callable[[Shared], list[Future[AdapterHandle]]]):
    threads = shared.start_threads()
    waiters = ask(shared)
    assert not threads.closed
    threads.close()
    assert threads.closed
    for waiter in waiters:
        with pytest.raises(RuntimeError, match="the adapter store is closed"):
            waiter.result(0)
    assert not shared.queue.joinable
