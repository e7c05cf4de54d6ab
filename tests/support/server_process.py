"""`tensorrt-lora serve` in a process of its own."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import httpx

START_S = 300.0


@dataclass(frozen=True)
class ServerProcess:
    """A server that is ready."""

    process: subprocess.Popen[str]
    url: str

    def num_files(self) -> int:
        """Open files and sockets of the server and of the engine's process."""
        pids = [self.process.pid, *children(self.process.pid)]
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


@contextmanager
def server_process(options: Sequence[str], environment: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """Start with these options on a free port and wait until it is ready; killed at the end if it still runs."""
    port = free_port()
    command = [sys.executable, "-m", "tensorrt_lora.cli.main", "serve", *options, "--port", str(port)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    process = subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(process, url)
        yield ServerProcess(process, url)
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[str], url: str) -> None:
    end = monotonic() + START_S
    while not _is_ready(url):
        assert process.poll() is None, process.communicate()[1]
        assert monotonic() < end, "the server does not get ready"
        sleep(0.05)


def children(pid: int) -> list[int]:
    text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for child in text.split()]


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False
