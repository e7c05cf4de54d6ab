"""The whole command in a process of its own: it says when it is ready, and SIGTERM lets it finish and exit with 0."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.server_process import ServerProcess, server_process


@pytest.fixture
def server(model_dir: Path, root: Path) -> Iterator[ServerProcess]:
    """Adapters come from `--lora` and the root, the executor is a process of its own."""
    options = ["--lora", f"red={root / 'red'}", "--lora-root", str(root), "--device", "cpu"]
    with server_process([str(model_dir), *options], {"TENSORRT_LORA_API_KEY": "secret"}) as server:
        yield server


def test_sigterm_drains_and_exits_with_0(server: ServerProcess) -> None:
    process, url = server.process, server.url
    headers = {"Authorization": "Bearer secret"}
    models = httpx.get(f"{url}/v1/models", headers=headers).json()["data"]
    assert [model["id"] for model in models] == ["tiny", "red"]
    body = {"model": "red", "prompt": "abc", "max_tokens": 400, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as response:
            for line in response.iter_lines():
                lines.append(line)
                begun.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert begun.wait(30)
    process.send_signal(signal.SIGTERM)
    statuses = []
    while reading.is_alive():
        try:
            statuses.append(httpx.post(f"{url}/v1/completions", json=body, headers=headers).status_code)
        except httpx.TransportError:
            break  # the stream has ended, and the socket is closed
    reading.join(30)
    assert process.wait(30) == 0
    frames = [line.removeprefix("data: ") for line in lines if line]
    assert frames[-1] == "[DONE]"
    assert json.loads(frames[-2])["usage"]["completion_tokens"] == 400
    # One that came before the signal was seen may have been served; none was after it.
    assert 503 in statuses and statuses[statuses.index(503) :] == [503] * (len(statuses) - statuses.index(503))
