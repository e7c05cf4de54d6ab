"""The engine loop: requests, aborts and the end, in the order they came."""

import threading
from queue import SimpleQueue

import pytest

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.control_messages import ControlReply, ListAdapters, LoadAdapter, UnloadAdapter
from tensorrt_lora.engine.executor_worker import Inbox, News, run_loop
from tensorrt_lora.engine.generation_request import AbortRequest, GenerationRequest, GenerationResponse
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams
from tests.support.toy_executor import CRASH_TOKEN, ToyExecutor


def make_executor() -> ToyExecutor:
    return ToyExecutor(TorchLlmArgs(model="toy"), progress=False)


def make_request(request_id: int, tokens: list[int], max_tokens: int = 3) -> GenerationRequest:
    return GenerationRequest(request_id, tokens, SamplingParams(max_tokens=max_tokens))


def test_serves_until_none_and_shuts_down() -> None:
    executor, inbox, sent = make_executor(), SimpleQueue[object](), []
    inbox.put(make_request(1, [5, 6]))
    inbox.put(make_request(2, [8]))

    def send(responses: list[GenerationResponse]) -> None:
        sent.extend(responses)
        if len(sent) == 6:
            inbox.put(None)

    run_loop(executor, inbox, send)
    tokens = {one: [r.token_ids[0] for r in sent if r.request_id == one] for one in (1, 2)}
    assert tokens == {1: [5, 6, 5], 2: [8, 8, 8]}
    assert [response.finish_reason for response in sent[-2:]] == ["length", "length"]
    assert executor.is_shut_down


def test_idle_loop_sleeps_and_wakes_for_a_request() -> None:
    executor, inbox, arrived = make_executor(), SimpleQueue[object](), threading.Event()
    thread = threading.Thread(target=run_loop, args=(executor, inbox, lambda responses: arrived.set()))
    thread.start()
    assert not arrived.wait(0.05)
    inbox.put(make_request(1, [5]))
    assert arrived.wait(10)
    inbox.put(None)
    thread.join(10)
    assert not thread.is_alive()


def test_abort_reaches_a_running_request() -> None:
    executor, inbox, sent = make_executor(), SimpleQueue[object](), []
    inbox.put(make_request(1, [5], max_tokens=10**6))

    def send(responses: list[GenerationResponse]) -> None:
        sent.extend(responses)
        inbox.put(None if sent[-1].finish_reason == "abort" else AbortRequest(1))

    run_loop(executor, inbox, send)
    assert executor.aborted == [1]
    assert not executor.has_work


def test_calls_are_answered_in_order_beside_requests() -> None:
    executor, inbox, sent = make_executor(), SimpleQueue[object](), []
    adapter = LoRARequest("next", 1, "adapters/next")
    for message in (LoadAdapter(7, adapter), make_request(1, [5], max_tokens=1), ListAdapters(8), UnloadAdapter(9, 2)):
        inbox.put(message)

    def send(news: list[News]) -> None:
        sent.extend(news)
        if len(sent) == 4:
            inbox.put(None)

    run_loop(executor, inbox, send)
    replies = [one for one in sent if isinstance(one, ControlReply)]
    assert [reply.call_id for reply in replies] == [7, 8, 9]
    assert replies[1].value == [replies[0].value]
    assert isinstance(replies[2].error, ValueError)


def test_none_ends_the_loop_with_work_left() -> None:
    executor, inbox = make_executor(), SimpleQueue[object]()
    inbox.put(make_request(1, [5], max_tokens=10**6))
    run_loop(executor, inbox, lambda responses: inbox.put(None))
    assert executor.is_shut_down and executor.has_work


def test_an_exception_ends_the_loop_and_shuts_down() -> None:
    executor = make_executor()
    inbox: Inbox = SimpleQueue()
    inbox.put(make_request(1, [CRASH_TOKEN]))
    with pytest.raises(RuntimeError, match="the toy is broken"):
        run_loop(executor, inbox, lambda responses: None)
    assert executor.is_shut_down


def test_a_failure_to_receive_ends_the_loop_and_shuts_down() -> None:
    executor = make_executor()
    inbox: Inbox = SimpleQueue()
    inbox.put(RuntimeError("a message cannot be read"))
    with pytest.raises(RuntimeError, match="cannot be read"):
        run_loop(executor, inbox, lambda responses: None)
    assert executor.is_shut_down
