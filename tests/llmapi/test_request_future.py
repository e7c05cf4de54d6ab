"""Waiting, awaiting, streaming and aborting, with the responses delivered by hand."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.llmapi.output_builder import OutputBuilder
from tensorrt_lora.llmapi.request_future import RequestFuture
from tensorrt_lora.llmapi.request_output import RequestError
from tensorrt_lora.llmapi.tokenizer import Tokenizer
from tensorrt_lora.sampling_params import SamplingParams

MakeFuture = Callable[..., RequestFuture]


@pytest.fixture
def make_future(tokenizer: Tokenizer) -> MakeFuture:
    def make(*, streaming: bool = False, on_abort: Callable[[int], None] = lambda _: None) -> RequestFuture:
        request = GenerationRequest(7, tokenizer.encode("ab"), SamplingParams())
        builder = OutputBuilder(request, prompt="ab", tokenizer=tokenizer, streaming=streaming)
        return RequestFuture(builder, streaming=streaming, on_abort=on_abort)

    return make


def deliver(future: RequestFuture, tokenizer: Tokenizer, text: str, *, last: bool = False) -> bool:
    reason = "length" if last else None
    return future.deliver(GenerationResponse(7, token_ids=tokenizer.encode(text), finish_reason=reason))


def test_result_waits_for_the_end(make_future: MakeFuture, tokenizer: Tokenizer) -> None:
    future = make_future()
    assert not deliver(future, tokenizer, "x") and not future.done()
    with pytest.raises(TimeoutError, match="request 7 is still running after"):
        future.result(timeout=0.01)
    threading.Timer(0.05, deliver, (future, tokenizer, "y"), {"last": True}).start()
    assert future.result(timeout=10).outputs[0].text == "xy"
    assert future.done()


def test_a_failed_request_raises_or_tells(make_future: MakeFuture) -> None:
    future = make_future()
    future.deliver(GenerationResponse(7, finish_reason="error", error="too long"))
    with pytest.raises(RequestError, match="too long"):
        future.result()
    assert future.wait().error == "too long"
    with pytest.raises(RequestError, match="too long"):
        list(future)


def test_the_engines_end_raises_for_every_way_to_wait(make_future: MakeFuture) -> None:
    future = make_future(streaming=True)
    future.fail(EngineDeadError("gone"))
    for ask in (future.result, future.wait, lambda: list(future), lambda: asyncio.run(wait_for(future))):
        with pytest.raises(EngineDeadError, match="gone"):
            ask()


async def wait_for(future: RequestFuture) -> str:
    return (await future).outputs[0].text


def test_abort_ends_at_once_and_once(make_future: MakeFuture, tokenizer: Tokenizer) -> None:
    aborted: list[int] = []
    future = make_future(on_abort=aborted.append)
    deliver(future, tokenizer, "x")
    future.abort()
    future.abort()
    deliver(future, tokenizer, "y", last=True)
    output = future.result(timeout=0)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("x", "abort")
    assert aborted == [7]


def test_iteration_gives_news_and_every_iteration_all_of_it(make_future: MakeFuture, tokenizer: Tokenizer) -> None:
    future = make_future(streaming=True)
    stream = iter(future)
    deliver(future, tokenizer, "a")
    first = next(stream)
    assert first.outputs[0].text_diff == "a" and not first.finished
    deliver(future, tokenizer, "b")
    deliver(future, tokenizer, "c")
    second = next(stream)
    assert (second.outputs[0].text, second.outputs[0].text_diff) == ("abc", "bc")
    deliver(future, tokenizer, "d", last=True)
    assert [one.outputs[0].text_diff for one in stream] == ["d"]
    assert [one.outputs[0].text_diff for one in future] == ["abcd"]


def test_iteration_without_streaming_gives_the_end(make_future: MakeFuture, tokenizer: Tokenizer) -> None:
    future = make_future(streaming=False)
    deliver(future, tokenizer, "a")
    threading.Timer(0.02, deliver, (future, tokenizer, "b"), {"last": True}).start()
    assert [one.outputs[0].text for one in future] == ["ab"]


def test_async_iteration(make_future: MakeFuture, tokenizer: Tokenizer) -> None:
    future = make_future(streaming=True)

    def produce() -> None:
        for letter in "abcde":
            deliver(future, tokenizer, letter)
            time.sleep(0.002)
        deliver(future, tokenizer, "f", last=True)

    async def consume() -> list[str]:
        threading.Thread(target=produce).start()
        return [output.outputs[0].text_diff async for output in future]

    diffs = asyncio.run(consume())
    assert "".join(diffs) == "abcdef" and len(diffs) > 1


def test_many_wait_for_one(make_future: MakeFuture, tokenizer: Tokenizer) -> None:
    future = make_future(streaming=True)

    async def consume() -> list[str]:
        threading.Timer(0.05, deliver, (future, tokenizer, "x"), {"last": True}).start()
        return await asyncio.gather(*(wait_for(future) for _ in range(3)))

    assert asyncio.run(consume()) == ["x", "x", "x"]


def test_a_cancelled_waiter_and_a_closed_loop_do_no_harm(make_future: MakeFuture, tokenizer: Tokenizer) -> None:
    future = make_future()

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait_for(future), 0.01)

    asyncio.run(give_up())
    assert deliver(future, tokenizer, "x", last=True)
    assert asyncio.run(wait_for(future)) == "x"
