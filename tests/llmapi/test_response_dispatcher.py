"""Responses find their futures, and nobody waits for an engine that is gone."""

import os
import threading

import pytest

from tensorrt_lora.engine.control_messages import ControlReply, GetStats, ListAdapters
from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.llmapi.output_builder import OutputBuilder
from tensorrt_lora.llmapi.request_future import RequestFuture
from tensorrt_lora.llmapi.response_dispatcher import ResponseDispatcher
from tensorrt_lora.llmapi.tokenizer import Tokenizer
from tensorrt_lora.sampling_params import SamplingParams
from tests.support.hand_client import HandClient


@pytest.fixture
def client() -> HandClient:
    return HandClient()


def submit(
    dispatcher: ResponseDispatcher, request_id: int, tokenizer: Tokenizer | None = None, **params: object
) -> RequestFuture:
    request = GenerationRequest(request_id, [1], SamplingParams(**params))
    builder = OutputBuilder(request, prompt=None, tokenizer=tokenizer, streaming=False)
    future = RequestFuture(builder, streaming=False, on_abort=dispatcher.abort)
    dispatcher.submit(request, future)
    return future


def test_responses_find_their_futures(client: HandClient) -> None:
    dispatcher = ResponseDispatcher(client)
    futures = {request_id: submit(dispatcher, request_id) for request_id in (1, 2)}
    assert client.submitted == [1, 2]
    client.says.put([GenerationResponse(one, token_ids=[one], finish_reason="length") for one in (2, 9, 1)])
    for request_id, future in futures.items():
        assert future.result(timeout=10).outputs[0].token_ids == [request_id]
    dispatcher.close()
    assert client.aborted.empty()


def test_a_stop_string_ends_the_request_in_the_engine(client: HandClient, tokenizer: Tokenizer) -> None:
    dispatcher = ResponseDispatcher(client)
    future = submit(dispatcher, 1, tokenizer, stop="b")
    client.says.put([GenerationResponse(1, token_ids=tokenizer.encode("ab"))])
    assert future.result(timeout=10).outputs[0].text == "a"
    assert client.aborted.get(timeout=10) == 1
    client.says.put([GenerationResponse(1, token_ids=tokenizer.encode("c"), finish_reason="abort")])
    dispatcher.close()
    assert future.result().outputs[0].finish_reason == "stop"
    assert client.aborted.empty()


def test_abort_is_sent_on(client: HandClient) -> None:
    dispatcher = ResponseDispatcher(client)
    submit(dispatcher, 1).abort()
    assert client.aborted.get(timeout=10) == 1
    dispatcher.close()


def test_the_engines_end_fails_what_runs_and_what_comes(client: HandClient) -> None:
    dispatcher = ResponseDispatcher(client)
    futures = [submit(dispatcher, request_id) for request_id in range(3)]
    client.says.put(EngineDeadError("out of memory"))
    for future in futures:
        with pytest.raises(EngineDeadError, match="out of memory"):
            future.result(timeout=10)
    with pytest.raises(EngineDeadError, match="out of memory: create a new LLM"):
        submit(dispatcher, 4)
    dispatcher.close()


def test_close_fails_what_runs(client: HandClient) -> None:
    dispatcher = ResponseDispatcher(client)
    future = submit(dispatcher, 1)
    dispatcher.close()
    with pytest.raises(EngineDeadError, match="was shut down"):
        future.result(timeout=10)
    with pytest.raises(EngineDeadError, match="was shut down: create a new LLM"):
        submit(dispatcher, 2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_while_reading_leaves_nobody_waiting(client: HandClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    dispatcher = ResponseDispatcher(client)
    future = submit(dispatcher, 1)
    client.says.put(ZeroDivisionError("a bug"))
    with pytest.raises(EngineDeadError, match="nothing reads the engine's responses"):
        future.result(timeout=10)


def test_a_forked_copy_leaves_the_engine_alone(client: HandClient, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = ResponseDispatcher(client)
    future = submit(dispatcher, 1)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        dispatcher.close()
        future.abort()
        with pytest.raises(EngineDeadError, match="forked from: create a new LLM"):
            submit(dispatcher, 2)
    assert client.says.empty() and client.aborted.empty() and client.submitted == [1]
    dispatcher.close()


def test_replies_find_their_calls(client: HandClient) -> None:
    dispatcher = ResponseDispatcher(client)
    listed, stats, failed = (dispatcher.call(kind) for kind in (ListAdapters, GetStats, GetStats))
    answered = EngineStats(requests_running=3)
    client.says.put([ControlReply(2, error=ValueError("no")), ControlReply(1, answered), ControlReply(99)])
    assert stats.result(10) == answered
    with pytest.raises(ValueError, match="no"):
        failed.result(10)
    assert not listed.done()
    dispatcher.close()
    with pytest.raises(EngineDeadError, match="was shut down"):
        listed.result(10)
    with pytest.raises(EngineDeadError, match="create a new LLM"):
        dispatcher.call(GetStats)


def test_a_call_that_nobody_waits_for_any_more(client: HandClient) -> None:
    dispatcher = ResponseDispatcher(client)
    dropped, kept = dispatcher.call(GetStats), dispatcher.call(GetStats)
    assert dropped.cancel()
    client.says.put([ControlReply(0, EngineStats()), ControlReply(1, EngineStats())])
    assert kept.result(10) == EngineStats()
    assert dropped.cancelled()
    gone = dispatcher.call(GetStats)
    assert gone.cancel()
    dispatcher.close()
