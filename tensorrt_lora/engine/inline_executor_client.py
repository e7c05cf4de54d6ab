"""The engine in the caller's own process: a daemon thread and two queues.

For tests, debugging and small CPU runs: the loop shares the interpreter lock with the front. Errors of the
start raise as they are, since the engine is built in the calling thread.
"""

import threading
from queue import SimpleQueue

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.control_messages import ControlRequest
from tensorrt_lora.engine.executor_client import EngineDeadError, ExecutorClient
from tensorrt_lora.engine.executor_worker import Executor, ExecutorFactory, Inbox, News, run_loop
from tensorrt_lora.engine.generation_request import AbortRequest, GenerationRequest
from tensorrt_lora.utils.logger import logger

_SHUTDOWN_SECONDS = 30.0


class InlineExecutorClient(ExecutorClient):
    """Builds the engine, then runs its loop in a thread."""

    def __init__(self, args: TorchLlmArgs, *, progress: bool, executor_factory: ExecutorFactory) -> None:
        executor = executor_factory(args, progress=progress)
        self.info = dict(executor.info)
        self._inbox: Inbox = SimpleQueue()
        self._outbox: SimpleQueue[list[News] | Exception | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(executor,), name="tensorrt-lora-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest | ControlRequest) -> None:
        if not self._thread.is_alive():
            raise EngineDeadError("the engine thread has ended: create a new LLM")
        self._inbox.put(request)

    def abort(self, request_id: int) -> None:
        self._inbox.put(AbortRequest(request_id))

    def receive(self) -> list[News] | None:
        news = self._outbox.get()
        if isinstance(news, Exception):
            raise EngineDeadError(f"the engine failed: {type(news).__name__}: {news}") from news
        return news

    def shutdown(self) -> None:
        self._inbox.put(None)
        # A finaliser may call this from any thread, the engine's own included.
        if self._thread is not threading.current_thread():
            self._thread.join(_SHUTDOWN_SECONDS)

    def _run(self, executor: Executor) -> None:
        try:
            run_loop(executor, self._inbox, self._outbox.put)
        # A thread's end is a boundary like a process's: whatever happened must reach the front.
        except Exception as error:
            logger.exception("the engine failed")
            self._outbox.put(error)
        else:
            self._outbox.put(None)
