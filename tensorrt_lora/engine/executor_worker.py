"""The engine loop: take what arrived, run a step, send what came out; sleep when there is nothing to do.

Owns the loop alone, the same in a thread (`inline_executor_client`) and in a process (`executor_process`).
Must not know which of the two it runs in, nor how a step works.
"""

from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.control_messages import ControlReply, ControlRequest
from tensorrt_lora.engine.generation_request import AbortRequest, GenerationRequest, GenerationResponse

# None asks the loop to end; an exception, met while receiving, ends it as a failure.
Message: TypeAlias = GenerationRequest | AbortRequest | ControlRequest | Exception | None
News: TypeAlias = GenerationResponse | ControlReply
Inbox: TypeAlias = "SimpleQueue[Message]"


class Executor(Protocol):
    """What the loop and the front need of an engine; `PyExecutor` is the real one.

    A request that fails is answered by `step` with finish reason "error"; an exception from any method means
    that the engine is lost.
    """

    @property
    def info(self) -> Mapping[str, int | str]: ...

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to report."""

    def enqueue(self, request: GenerationRequest) -> None: ...

    def abort(self, request_id: int) -> None:
        """End a request; does nothing for one that is unknown or already finished."""

    def control(self, request: ControlRequest) -> None:
        """Take a call; its reply comes from `take_replies`, and `has_work` until then."""

    def step(self) -> list[GenerationResponse]: ...

    def take_replies(self) -> list[ControlReply]:
        """The replies that are there, each once."""

    def shutdown(self) -> None: ...


class ExecutorFactory(Protocol):
    """Builds an engine. It may travel to another process, so it must be importable by name."""

    def __call__(self, args: TorchLlmArgs, *, progress: bool) -> Executor: ...


def run_loop(executor: Executor, inbox: Inbox, send: Callable[[list[News]], None]) -> None:
    """Serve until None arrives in `inbox`, then shut down; requests still running get no answer.

    Raises what the executor raises, and an exception that arrives in `inbox`.
    """
    try:
        while True:
            messages = _drain(inbox, block=not executor.has_work)
            for message in messages:
                if message is None:
                    return
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, GenerationRequest):
                    executor.enqueue(message)
                elif isinstance(message, AbortRequest):
                    executor.abort(message.request_id)
                else:
                    executor.control(message)
            if executor.has_work:
                news: list[News] = [*executor.step(), *executor.take_replies()]
                if news:
                    send(news)
    finally:
        executor.shutdown()


def _drain(inbox: Inbox, *, block: bool) -> list[Message]:
    """Everything in the inbox; with `block`, at least one message."""
    messages = [inbox.get()] if block else []
    while True:
        try:
            messages.append(inbox.get_nowait())
        except Empty:
            return messages
