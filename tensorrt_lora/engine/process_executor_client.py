"""The engine in a process of its own: its loop shares no interpreter lock with clients and tokenizers.

Owns the child: start, talk, notice its death, stop. The child is a plain `python -m`, not a multiprocessing
one, so users' scripts need no `__main__` guard. A socket pair ties the two: each sees the other's death.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.control_messages import ControlRequest
from tensorrt_lora.engine.executor_client import EngineDeadError, ExecutorClient
from tensorrt_lora.engine.executor_messages import EngineFailure, EngineReady, ExecutorStart
from tensorrt_lora.engine.executor_worker import ExecutorFactory, News
from tensorrt_lora.engine.generation_request import AbortRequest, GenerationRequest
from tensorrt_lora.utils.logger import logger

_CHILD_MODULE = "tensorrt_lora.engine.executor_process"
_SHUTDOWN_SECONDS = 15.0
_EXIT_SECONDS = 5.0


class ProcessExecutorClient(ExecutorClient):
    """Starts the engine process and waits until it is ready.

    Raises what the engine raised while starting (same type and text for the common types), or EngineDeadError
    if the process died without a word.
    """

    def __init__(self, args: TorchLlmArgs, *, progress: bool, executor_factory: ExecutorFactory) -> None:
        self._connection, child_end = multiprocessing.Pipe()
        self._process = _start_child(child_end)
        child_end.close()
        # Reentrant: a finaliser may shut down in the very thread that sends or receives.
        self._send_lock = threading.RLock()
        self._receive_lock = threading.RLock()
        self._closing = False
        try:
            self._connection.send(ExecutorStart(args, progress, executor_factory, logger.getEffectiveLevel()))
            news = self._connection.recv()
        except (EOFError, OSError) as error:
            raise EngineDeadError(f"{self._reap()} while it was starting; see its output above") from error
        except BaseException:
            # Ctrl-C above all: loading goes on for minutes in the child, which has not seen the signal.
            self._process.kill()
            self._process.wait()
            raise
        if isinstance(news, EngineFailure):
            self._reap()
            raise news.to_exception()
        assert isinstance(news, EngineReady), f"unexpected first message {news!r}"
        self.info = news.info

    def submit(self, request: GenerationRequest | ControlRequest) -> None:
        try:
            self._send(request)
        except OSError as error:
            raise EngineDeadError("the engine process is gone: create a new LLM") from error

    def abort(self, request_id: int) -> None:
        try:
            self._send(AbortRequest(request_id))
        except OSError:
            logger.debug("abort of request %d came after the engine's end", request_id)

    def receive(self) -> list[News] | None:
        try:
            with self._receive_lock:
                news = self._connection.recv()
        except (EOFError, OSError) as error:
            if self._closing:
                return None
            raise EngineDeadError(self._reap()) from error
        if isinstance(news, EngineFailure):
            logger.error("the engine failed:\n%s", news.traceback)
            self._reap()
            raise EngineDeadError(f"the engine failed: {news.message}")
        assert isinstance(news, list), f"unexpected message {news!r}"
        return news

    def shutdown(self) -> None:
        self._closing = True
        with suppress(OSError):  # Already gone, which is what is wanted.
            self._send(None)
        try:
            self._process.wait(_SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("the engine process did not end within %.0f s: killing it", _SHUTDOWN_SECONDS)
            self._process.kill()
            self._process.wait()
        # With both locks: the number of a descriptor that is in use might by then be another file's. A thread that
        # receives has been woken by the end of the process.
        with self._receive_lock, self._send_lock:
            self._connection.close()

    def _send(self, message: GenerationRequest | AbortRequest | ControlRequest | None) -> None:
        with self._send_lock:
            self._connection.send(message)

    def _reap(self) -> str:
        """Collect the child, whose end of the connection has closed, and say how it ended."""
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code >= 0:
            return f"the engine process ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = " (often the system's out-of-memory killer)" if name == "SIGKILL" else ""
        return f"the engine process was ended by {name}{hint}"


def _start_child(child_end: Connection) -> "subprocess.Popen[bytes]":
    # The child must import what the parent can, e.g. a checkout that is on sys.path only, and nothing else.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "PYTHONSAFEPATH": "1",
    }
    descriptor = child_end.fileno()
    return subprocess.Popen(
        [sys.executable, "-m", _CHILD_MODULE, str(descriptor)],
        stdin=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        env=environment,
        # A session of its own: Ctrl-C in the terminal goes to the front alone, which shuts the engine down.
        start_new_session=True,
    )
