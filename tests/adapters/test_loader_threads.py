"""The threads with nothing but what they share with the store. Waits are bounded: a hang is a failure."""

import threading
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

    def start_threads(self, num_threads: int = 2) -> LoaderThreads:
        reader = AdapterSourceReader(read, None, self.cache.peek, max_bytes=2**20)
        return LoaderThreads(reader, self.registry, self.cache, self.queue, self.changed, num_threads=num_threads)

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


def test_closing_ends_the_threads_and_what_they_have_not_begun(shared: Shared):
    threads = shared.start_threads(num_threads=0)
    waiters = [shared.ask(request) for request in (ONE, TWO, ONE)]
    assert not threads.closed
    threads.close()
    assert threads.closed and not shared.queue.joinable
    for waiter in waiters:
        with pytest.raises(RuntimeError, match="the adapter store is closed"):
            waiter.result(0)


def test_threads_that_have_nothing_to_do_end_too(shared: Shared):
    threads = shared.start_threads()
    assert shared.ask(ONE).result(TIMEOUT).name == "a1"
    threads.close()
    assert threads.closed
