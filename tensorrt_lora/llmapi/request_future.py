"""One running request, as its caller sees it: wait for it, await it, stream it, abort it.

Owns the meeting of threads: the dispatcher delivers, any number of callers wait. Made by `RequestRunner`, fed by
`response_dispatcher`. Holds no reference to the LLM.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial

from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.engine.generation_request import GenerationResponse
from tensorrt_lora.llmapi.output_builder import OutputBuilder, StreamPosition
from tensorrt_lora.llmapi.request_output import RequestError, RequestOutput


class RequestFuture:
    """The answer to come.

    Iteration (`for` or `async for`) gives snapshots: with `streaming`, one whenever there is news, else only
    the final one. A slow reader gets fewer snapshots, each with all that is new; nothing piles up. Every
    iteration starts from the beginning. To stop iterating does not stop the request: call `abort`.
    """

    def __init__(self, builder: OutputBuilder, *, streaming: bool, on_abort: Callable[[int], None]) -> None:
        self.request_id = builder.request_id
        self._builder = builder
        self._streaming = streaming
        self._on_abort = on_abort
        self._failure: EngineDeadError | None = None
        self._version = 0
        self._changed = threading.Condition()
        self._async_waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        with self._changed:
            return self._done()

    def wait(self, timeout: float | None = None) -> RequestOutput:
        """The final output, also of a request that failed (see its `error`).

        Raises TimeoutError after `timeout` seconds (the request goes on), EngineDeadError without an engine.
        """
        with self._changed:
            if not self._changed.wait_for(self._done, timeout):
                raise TimeoutError(f"request {self.request_id} is still running after {timeout} s")
            return self._snapshot(None)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Like `wait`, but raises RequestError for a request that failed. An aborted one has what it has."""
        return _checked(self.wait(timeout))

    def abort(self) -> None:
        """End the request now, with finish reason "abort"; does nothing once it is done."""
        with self._changed:
            if self._done():
                return
            self._builder.finish("abort")
            self._notify()
        self._on_abort(self.request_id)

    def __await__(self) -> Generator[object, None, RequestOutput]:
        return self._result_async().__await__()

    def __iter__(self) -> Iterator[RequestOutput]:
        position, version, finished = StreamPosition(), 0, False
        while not finished:
            with self._changed:
                self._changed.wait_for(partial(self._has_news, version))
                output, version = self._snapshot(position), self._version
            finished = output.finished
            yield _checked(output)

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        position, version, finished = StreamPosition(), 0, False
        while not finished:
            await self._wait_async(version)
            with self._changed:
                output, version = self._snapshot(position), self._version
            finished = output.finished
            yield _checked(output)

    def deliver(self, response: GenerationResponse) -> bool:
        """The dispatcher's side: take a response. Returns True when the request is done."""
        with self._changed:
            self._builder.append(response)
            self._notify()
            return self._done()

    def fail(self, failure: EngineDeadError) -> None:
        """The dispatcher's side: there will be no more responses."""
        with self._changed:
            if not self._done():
                self._failure = failure
                self._notify()

    @property
    def engine_finished(self) -> bool:
        """The dispatcher's side: whether the engine, too, is through with the request."""
        return self._builder.engine_finished

    def _done(self) -> bool:
        return self._failure is not None or self._builder.finished

    def _has_news(self, version: int | None) -> bool:
        """Whether there is a snapshot after `version`; None asks for the final one."""
        return self._done() or (self._streaming and version is not None and self._version > version)

    def _snapshot(self, position: StreamPosition | None) -> RequestOutput:
        if self._failure is not None:
            # A new exception for every caller: raising a shared one would pile up tracebacks.
            raise EngineDeadError(str(self._failure)) from self._failure
        return self._builder.snapshot(position)

    def _notify(self) -> None:
        self._version += 1
        if not (self._streaming or self._done()):
            return  # Nobody waits for anything but the end.
        self._changed.notify_all()
        for loop, waiter in self._async_waiters:
            with suppress(RuntimeError):  # That loop has been closed: nobody waits there any more.
                loop.call_soon_threadsafe(_wake, waiter)
        self._async_waiters.clear()

    async def _wait_async(self, version: int | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._has_news(version):
                    return
                entry = (loop, loop.create_future())
                self._async_waiters.add(entry)
            try:
                await entry[1]
            finally:
                with self._changed:
                    self._async_waiters.discard(entry)

    async def _result_async(self) -> RequestOutput:
        await self._wait_async(None)
        return self.result()


def _checked(output: RequestOutput) -> RequestOutput:
    if output.error is not None:
        raise RequestError(output.error, output.adapter_error_kind)
    return output


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
