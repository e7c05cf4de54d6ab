"""Carries requests and calls to the engine, and its answers back to the futures that wait for them.

Owns the tables of running requests and calls, and the one thread that reads from the engine, which also makes text.
Created by `LLM`; holds no reference to it, so that an LLM nobody uses any more can be collected.
"""

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from tensorrt_lora.engine.control_messages import ControlReply, ControlRequest, ControlValue
from tensorrt_lora.engine.executor_client import EngineDeadError, ExecutorClient
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.llmapi.request_future import RequestFuture


class ResponseDispatcher:
    """Thread-safe; ends with `close` or with the engine, whichever comes first.

    A forked child inherits a copy, without the reading thread: it takes no requests and leaves the engine alone.
    """

    def __init__(self, client: ExecutorClient) -> None:
        self._client = client
        self._pid = os.getpid()
        self._running: dict[int, RequestFuture] = {}
        self._calls: dict[int, Future[ControlValue]] = {}
        self._call_ids = itertools.count()
        self._end: EngineDeadError | None = None
        # Reentrant: the garbage collector may run an LLM's finaliser, which closes, anywhere.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._read, name="tensorrt-lora-responses", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, future: RequestFuture) -> None:
        """Send a request whose responses go to `future`. Raises EngineDeadError without an engine."""
        with self._lock:
            self._check_engine()
            self._running[request.request_id] = future
        self._client.submit(request)

    def call(self, make: Callable[[int], ControlRequest]) -> "Future[ControlValue]":
        """Send the call that `make` makes of a call id; its future gives the reply's value, or raises its error.

        A future that is cancelled drops the answer; the engine does what it was asked all the same. Raises
        EngineDeadError without an engine, and so does the future when the engine ends first.
        """
        request = make(next(self._call_ids))
        future: Future[ControlValue] = Future()
        with self._lock:
            self._check_engine()
            self._calls[request.call_id] = future
        self._client.submit(request)
        return future

    def abort(self, request_id: int) -> None:
        """Forget a request and end it in the engine; its late responses are dropped."""
        if self._is_forked:
            return
        with self._lock:
            self._running.pop(request_id, None)
        self._client.abort(request_id)

    def close(self) -> None:
        """Stop the engine; requests still running fail."""
        if self._is_forked:  # The finaliser of the child's copy: the engine is its parent's.
            return
        self._stop(EngineDeadError("the LLM was shut down"))
        self._client.shutdown()
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _read(self) -> None:
        try:
            while (news := self._client.receive()) is not None:
                for response in news:
                    if isinstance(response, ControlReply):
                        self._reply(response)
                    else:
                        self._deliver(response)
        except EngineDeadError as error:
            self._stop(error)
        finally:
            # Whatever ended this thread, nobody may wait for it in vain.
            self._stop(EngineDeadError("nothing reads the engine's responses any more"))

    def _deliver(self, response: GenerationResponse) -> None:
        with self._lock:
            future = self._running.get(response.request_id)
        if future is None or not future.deliver(response):
            return
        with self._lock:
            self._running.pop(response.request_id, None)
        if not future.engine_finished:
            self._client.abort(response.request_id)

    def _reply(self, reply: ControlReply) -> None:
        with self._lock:
            future = self._calls.pop(reply.call_id, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if reply.error is not None:
            future.set_exception(reply.error)
        else:
            future.set_result(reply.value)

    def _check_engine(self) -> None:
        """Under the lock."""
        if self._is_forked:
            raise EngineDeadError("the LLM belongs to the process that this one was forked from: create a new LLM")
        if self._end is not None:
            raise EngineDeadError(f"{self._end}: create a new LLM")

    def _stop(self, reason: EngineDeadError) -> None:
        with self._lock:
            self._end = self._end or reason
            orphans = list(self._running.values())
            self._running.clear()
            calls = list(self._calls.values())
            self._calls.clear()
        for future in orphans:
            future.fail(reason)
        for call in calls:
            if call.set_running_or_notify_cancel():
                call.set_exception(reason)
