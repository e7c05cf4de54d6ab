"""`tensorrt-lora serve` in a process of its own."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic, sleep

import httpx

START_S = 300.0
SERVE = (sys.executable, "-m", "tensorrt_lora.cli.main", "serve")
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class ServerProcess:
    """A server that is ready."""

    process: subprocess.Popen[bytes]
    url: str

    def num_files(self) -> int:
        """Open files and sockets of the server and of the engine's process."""
        pids = [self.process.pid, *children(self.process.pid)]
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


@contextmanager
def server_process(options: Sequence[str], environment: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """Start with these options on a free port and wait until it is ready; killed at the end if it still runs."""
    port = free_port()
    command = [*SERVE, *options, "--port", str(port)]
    with running(command, f"http://127.0.0.1:{port}", environment=environment) as server:
        yield server


@contextmanager
def running(
    command: Sequence[str], url: str, *, environment: dict[str, str] | None = None, cwd: Path | None = None
) -> Iterator[ServerProcess]:
    """The same for any command that becomes a server at `url`."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_REPOSITORY), **(environment or {})}
    with TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=settings, cwd=cwd, stderr=log)
        try:
            end = monotonic() + START_S
            while not _is_ready(url):
                if process.poll() is not None or monotonic() > end:
                    log.seek(0)
                    raise AssertionError(f"the server does not get ready: {log.read()}")
                sleep(0.05)
            yield ServerProcess(process, url)
        finally:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def children(pid: int) -> list[int]:
    text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for child in text.split()]


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False
