"""Both clients: requests go in, responses come out, and the end of the engine, wanted or not, is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.executor_client import EngineDeadError, ExecutorClient
from tensorrt_lora.engine.executor_worker import ExecutorFactory
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.engine.inline_executor_client import InlineExecutorClient
from tensorrt_lora.engine.process_executor_client import ProcessExecutorClient
from tensorrt_lora.sampling_params import SamplingParams
from tests.support.toy_executor import (
    CRASH_TOKEN,
    EXIT_TOKEN,
    BrokenExecutor,
    DyingExecutor,
    RefusingExecutor,
    ToyExecutor,
)

Client = type[InlineExecutorClient] | type[ProcessExecutorClient]
both = pytest.mark.parametrize("client_class", [InlineExecutorClient, ProcessExecutorClient])


def start(client_class: Client, factory: ExecutorFactory = ToyExecutor) -> ExecutorClient:
    return client_class(TorchLlmArgs(model="toy"), progress=True, executor_factory=factory)


def request(request_id: int, tokens: list[int], max_tokens: int = 2) -> GenerationRequest:
    return GenerationRequest(request_id, tokens, SamplingParams(max_tokens=max_tokens))


def receive_until(
    client: ExecutorClient, enough: Callable[[list[GenerationResponse]], bool]
) -> list[GenerationResponse]:
    responses: list[GenerationResponse] = []
    while not enough(responses):
        news = client.receive()
        assert news is not None
        responses += news
    return responses


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@both
def test_serves_aborts_and_stops(client_class: Client) -> None:
    client = start(client_class)
    assert client.info["progress"] == 1
    assert (client.info["pid"] == os.getpid()) == (client_class is InlineExecutorClient)
    client.submit(request(1, [5, 6]))
    client.submit(request(2, [7], max_tokens=10**6))
    client.abort(99)
    responses = receive_until(client, lambda got: any(r.request_id == 1 and r.finish_reason for r in got))
    assert [r.token_ids for r in responses if r.request_id == 1] == [[5], [6]]
    client.abort(2)
    receive_until(client, lambda got: any(r.finish_reason == "abort" for r in got))
    client.shutdown()
    client.shutdown()
    assert client.receive() is None
    with pytest.raises(EngineDeadError, match="create a new LLM"):
        client.submit(request(3, [1]))
    client.abort(3)
    if client_class is ProcessExecutorClient:
        assert is_gone(int(client.info["pid"]))  # Also says that it was waited for: a zombie would be there.


@both
def test_a_users_mistake_at_start_raises_as_it_is(client_class: Client) -> None:
    with pytest.raises(ValueError) as caught:
        start(client_class, RefusingExecutor)
    assert str(caught.value) == "max_batch_size=64 is not to the toy's taste: use 7"


@both
def test_a_failure_while_serving_tells_why(client_class: Client) -> None:
    client = start(client_class)
    client.submit(request(1, [CRASH_TOKEN]))
    with pytest.raises(EngineDeadError, match="RuntimeError: the toy is broken"):
        receive_until(client, lambda got: False)
    client.shutdown()


def test_a_bug_at_start_raises_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ZeroDivisionError: a bug in the toy.*toy_executor\.py"):
        start(ProcessExecutorClient, BrokenExecutor)


def test_death_at_start_tells_the_exit_code() -> None:
    with pytest.raises(EngineDeadError, match="exit code 5 while it was starting"):
        start(ProcessExecutorClient, DyingExecutor)


def test_death_while_serving_tells_the_exit_code_or_signal() -> None:
    client = start(ProcessExecutorClient)
    client.submit(request(1, [EXIT_TOKEN]))
    with pytest.raises(EngineDeadError, match="exit code 3"):
        receive_until(client, lambda got: False)
    client = start(ProcessExecutorClient)
    os.kill(int(client.info["pid"]), signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"SIGKILL .*out-of-memory"):
        receive_until(client, lambda got: False)
    with pytest.raises(EngineDeadError, match="create a new LLM"):
        client.submit(request(1, [5]))


_FRONT = """
import sys, time
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.process_executor_client import ProcessExecutorClient
from tests.support.toy_executor import ToyExecutor
client = ProcessExecutorClient(TorchLlmArgs(model="toy"), progress=False, executor_factory=ToyExecutor)
print(client.info["pid"], flush=True)
time.sleep(600)
"""


def test_the_engine_ends_with_its_front_and_only_then() -> None:
    """No guard in the front's script either: it is a plain script, and the child does not run it again."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", _FRONT],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as front:
        assert front.stdout is not None
        engine = int(front.stdout.readline())
        # What Ctrl-C in a terminal does: the signal goes to the whole group of the front.
        assert os.getpgid(engine) != os.getpgid(front.pid)
        front.kill()
        front.wait()
        deadline = time.monotonic() + 30
        while not is_gone(engine) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert is_gone(engine)


def _fail(error: type[Exception]) -> None:
    raise error("cannot be built here")


class _Unreadable:
    """Pickles well; unpickling raises `error`, as for a class that only the front's script has."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Callable[[type[Exception]], None], tuple[type[Exception]]]:
        return _fail, (self._error,)


@pytest.mark.parametrize("error", [AttributeError, OSError, EOFError, RecursionError])
def test_a_message_that_cannot_be_read_ends_the_engine(error: type[Exception]) -> None:
    client = start(ProcessExecutorClient)
    client.submit(_Unreadable(error))
    with pytest.raises(EngineDeadError, match=f"cannot be read: {error.__name__}: cannot be built here"):
        receive_until(client, lambda got: False)
    client.shutdown()


def test_shutdown_closes_the_connection() -> None:
    client = start(ProcessExecutorClient)
    descriptor = client._connection.fileno()
    os.fstat(descriptor)
    client.shutdown()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
