"""Carries requests to the engine and its responses back to the futures that wait for them.

Owns the table of running requests and the one thread that reads from the engine, which also makes text.
Created by `LLM`; holds no reference to it, so that an LLM nobody uses any more can be collected.
"""

import os
import threading

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
        self._end: EngineDeadError | None = None
        # Reentrant: the garbage collector may run an LLM's finaliser, which closes, anywhere.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._read, name="tensorrt-lora-responses", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, future: RequestFuture) -> None:
        """Send a request whose responses go to `future`. Raises EngineDeadError without an engine."""
        if self._is_forked:
            raise EngineDeadError("the LLM belongs to the process that this one was forked from: create a new LLM")
        with self._lock:
            if self._end is not None:
                raise EngineDeadError(f"{self._end}: create a new LLM")
            self._running[request.request_id] = future
        self._client.submit(request)

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
            while (responses := self._client.receive()) is not None:
                for response in responses:
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

    def _stop(self, reason: EngineDeadError) -> None:
        with self._lock:
            self._end = self._end or reason
            orphans = list(self._running.values())
            self._running.clear()
        for future in orphans:
            future.fail(reason)
