"""The engine process: `python -m tensorrt_lora.engine.executor_process FD`.

Owns the child's life: build the engine, run the loop, report failures, and never outlive the front, whose
death closes the connection. Started by `process_executor_client`; not to be imported, lest it exist twice.
"""

import faulthandler
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue

from tensorrt_lora.engine.executor_messages import EngineFailure, EngineReady, ExecutorStart
from tensorrt_lora.engine.executor_worker import Inbox, Message, run_loop

_ORPHAN_SECONDS = 10.0


class _FrontGoneError(Exception):
    """The other end of the connection has closed."""


def main(descriptor: int) -> int:
    """Serve the front at the other end of the socket `descriptor`; returns the exit code."""
    faulthandler.enable()
    connection = Connection(descriptor)

    def send(message: object) -> None:
        try:
            connection.send(message)
        except OSError as error:
            raise _FrontGoneError from error

    try:
        _serve(connection, send)
    except _FrontGoneError:
        return 1  # Nobody is left to tell.
    # A process boundary: whatever happened must reach the front, which decides what to do about it.
    except Exception as error:
        send(EngineFailure.from_exception(error))
        return 1
    return 0


def _serve(connection: Connection, send: Callable[[object], None]) -> None:
    start = connection.recv()
    assert isinstance(start, ExecutorStart), f"unexpected first message {start!r}"
    logging.basicConfig(level=start.log_level, format="[engine] %(levelname)s: %(message)s")
    inbox: Inbox = SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), name="inbox", daemon=True).start()
    executor = start.executor_factory(start.args, progress=start.progress)
    send(EngineReady(dict(executor.info)))
    run_loop(executor, inbox, send)


def _read(connection: Connection, inbox: Inbox) -> None:
    """Move messages to the inbox, in a thread of its own: sending never waits for a step to end."""
    try:
        while True:
            inbox.put(_unpickle(connection.recv_bytes()))
    except (EOFError, OSError):
        inbox.put(None)
    # Loading, or a hung step, does not look at the inbox; without a front it must not hold on to a GPU.
    time.sleep(_ORPHAN_SECONDS)
    os._exit(1)


def _unpickle(data: bytes) -> Message:
    """The message in `data`, or why there is none; apart from receiving, since unpickling may raise OSError too."""
    try:
        message: Message = pickle.loads(data)
    # Whoever sent it waits for an answer, so the loop must hear of it: this thread alone would just end.
    except Exception as error:
        failure = RuntimeError(f"a message to the engine cannot be read: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure
    return message


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the interpreter's own tidying up: with torch loaded it takes a second or two, and the front waits.
    os._exit(code)
