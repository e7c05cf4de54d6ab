"""The whole command in a process of its own: it says when it is ready, and SIGTERM lets it finish and exit with 0."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

START_S = 120.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def server(model_dir: Path, root: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its URL; adapters come from `--lora` and the root, the executor is a process of its own."""
    port = free_port()
    options = ["--lora", f"red={root / 'red'}", "--lora-root", str(root), "--device", "cpu", "--port", str(port)]
    command = [sys.executable, "-m", "tensorrt_lora.cli.main", "serve", str(model_dir), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TENSORRT_LORA_API_KEY": "secret"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        end = monotonic() + START_S
        while not is_ready(url):
            assert process.poll() is None, process.communicate()[1]
            assert monotonic() < end, "the server does not get ready"
            sleep(0.05)
        yield process, url
    finally:
        process.kill()
        process.communicate()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_sigterm_drains_and_exits_with_0(server: tuple[subprocess.Popen[str], str]) -> None:
    process, url = server
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
