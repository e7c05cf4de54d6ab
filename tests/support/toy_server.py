"""A server in front of the toy engine: requests that run for ever, and a look at what was aborted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.serve.app import create_app
from tensorrt_lora.serve.request_record import RequestRecord
from tensorrt_lora.serve.serve_config import ServeConfig
from tensorrt_lora.serve.server_state import ServerState
from tests.support.live_server import live_server
from tests.support.toy_executor import ToyExecutor

FOREVER = 10**6  # tokens: minutes


class LongToyExecutor(ToyExecutor):
    """Takes requests that are longer than any test."""

    def __init__(self, args: TorchLlmArgs, *, progress: bool) -> None:
        super().__init__(args, progress=progress)
        self.info = {**self.info, "max_seq_len": 10 * FOREVER, "vocab_size": 60_000}


class Recorder:
    """Keeps the records of requests that have ended."""

    def __init__(self) -> None:
        self.started: list[RequestRecord] = []
        self.finished: list[RequestRecord] = []
        self.num_tokens = 0

    def on_start(self, record: RequestRecord) -> None:
        self.started.append(record)

    def on_tokens(self, record: RequestRecord, num_new: int, seconds: float | None) -> None:
        self.num_tokens += num_new

    def on_finish(self, record: RequestRecord) -> None:
        self.finished.append(record)


@dataclass(frozen=True)
class ToyServer:
    url: str
    state: ServerState
    recorder: Recorder
    client: httpx.Client
    llm: LLM


@contextmanager
def toy_server(tokenizer_dir: Path, **settings: object) -> Iterator[ToyServer]:
    """`settings` are fields of `ServeConfig`."""
    overrides = {"engine": {"model": str(tokenizer_dir), "executor": "inline"}, **settings}
    config = ServeConfig.from_yaml(None, {"served_model_name": "toy", **overrides})
    recorder = Recorder()
    with LLM(args=config.engine, progress=False, executor_factory=LongToyExecutor) as llm:
        app = create_app(llm, config, observer=recorder)
        with live_server(app) as url, httpx.Client(base_url=url, timeout=30) as client:
            yield ToyServer(url, app.state.server, recorder, client, llm)
