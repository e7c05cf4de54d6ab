"""What frames a session with the engine process: how to start, that it is ready, why it failed.

Sent by `process_executor_client` and `executor_process`; requests and answers are in `generation_request`.
In a module of its own because classes of the child's `__main__` cannot be unpickled by the front.
"""

import traceback
from dataclasses import dataclass

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.executor_worker import ExecutorFactory

# Exceptions that keep their type on the way to the front, first match first; the rest arrive as RuntimeError.
_KEPT_TYPES: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    FileNotFoundError,
    OSError,
    MemoryError,
    NotImplementedError,
    ImportError,
)


@dataclass(slots=True)
class ExecutorStart:
    """First message to the engine process."""

    args: TorchLlmArgs
    progress: bool
    executor_factory: ExecutorFactory
    log_level: int


@dataclass(slots=True)
class EngineReady:
    """The engine is built and takes requests."""

    info: dict[str, int | str]


@dataclass(slots=True)
class EngineFailure:
    """An exception that ended the engine, as text: its class may not exist in the front."""

    kept_type: str
    message: str
    traceback: str

    @classmethod
    def from_exception(cls, error: Exception) -> "EngineFailure":
        for kept in _KEPT_TYPES:
            if isinstance(error, kept):
                return cls(kept.__name__, str(error), _format(error))
        return cls("RuntimeError", f"{type(error).__name__}: {error}", _format(error))

    def to_exception(self) -> Exception:
        """The exception to raise in the front: the original's type and text where that is a common type."""
        for kept in _KEPT_TYPES:
            if kept.__name__ == self.kept_type:
                return kept(self.message)
        return RuntimeError(f"the engine failed: {self.message}\n\n{self.traceback}")


def _format(error: Exception) -> str:
    return "".join(traceback.format_exception(error))
