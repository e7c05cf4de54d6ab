"""`tensorrt-lora serve` in a process of its own, for as long as a benchmark needs it.

Owns the process and its settings file. Knows the server by its command line and its addresses alone.
"""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tensorrt_lora.config.llm_args import TorchLlmArgs

HOST = "127.0.0.1"
BASE_NAME = "base"
_START_S = 900.0
_STOP_S = 60.0
_LOG_LINES = 15


class ServedEngine:
    """A server that is ready; ended by the `with` block. Raises ValueError, with its log's end, if it does not start.

    Args:
        args: the engine's settings.
        loras: directories by adapter name.
        max_sequences: that the server lets in at once.
        directory: for its settings and log.
    """

    def __init__(self, args: TorchLlmArgs, loras: Mapping[str, str], *, max_sequences: int, directory: Path) -> None:
        self.port = _free_port()
        self._log = directory / "server.log"
        settings = {
            "engine": args.model_dump(mode="json"),
            "served_model_name": BASE_NAME,
            "loras": dict(loras),
            "max_concurrent_sequences": max_sequences,
            "host": HOST,
            "port": self.port,
        }
        config = directory / "serve.yaml"
        config.write_text(json.dumps(settings), encoding="utf-8")  # which is YAML too
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tensorrt_lora.cli.main", "serve", "--config", str(config)],
                stdout=log,
                stderr=log,
            )
        try:
            self._wait()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def __enter__(self) -> "ServedEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self) -> None:
        end = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
                raise ValueError("the server did not start:\n" + "\n".join(lines[-_LOG_LINES:]))
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/ready", timeout=10) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
