"""The front's handle on an engine, wherever its loop runs.

Owns the interface; `inline_executor_client` and `process_executor_client` implement it, `llmapi/` uses it.
Knows token ids and request ids only, no text.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tensorrt_lora.engine.control_messages import ControlRequest
from tensorrt_lora.engine.executor_worker import News
from tensorrt_lora.engine.generation_request import GenerationRequest


class EngineDeadError(RuntimeError):
    """The engine is gone: it failed, was killed, or was shut down. Only a new `LLM` helps."""


class ExecutorClient(ABC):
    """Sends requests to an engine, receives its responses. Any thread may call `submit` and `abort`."""

    info: Mapping[str, int | str]

    @abstractmethod
    def submit(self, request: GenerationRequest | ControlRequest) -> None:
        """Hand over a request or a call. Raises EngineDeadError when there is no engine to take it."""

    @abstractmethod
    def abort(self, request_id: int) -> None:
        """End a request; nothing happens if it is unknown or over, or the engine gone."""

    @abstractmethod
    def receive(self) -> list[News] | None:
        """Wait for the next responses and replies, in one thread at a time; None after `shutdown`.

        Raises EngineDeadError, with what is known of the reason, when the engine failed.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the engine and wait for its end. A second call does nothing."""
