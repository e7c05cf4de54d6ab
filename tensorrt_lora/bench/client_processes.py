"""Streams of one measurement, spread over client processes that start together.

Owns the processes; `stream_clients` runs in them. Called by `ServeBench`.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tensorrt_lora.bench.stream_clients import StreamedRequest, StreamJob


class ClientProcesses:
    """Processes that are connected and wait. Raises ValueError, here and in `run`, with what one of them says."""

    def __init__(self, jobs: Sequence[StreamJob]) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tensorrt_lora.bench.stream_clients"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in jobs
        ]
        for process, job in zip(self._processes, jobs, strict=True):
            self._write(process, json.dumps(asdict(job)))
        for process in self._processes:
            if self._read(process) != "ready":
                self._fail(process)

    def run(self) -> list[StreamedRequest]:
        """Let them go, and wait for all."""
        for process in self._processes:
            self._write(process, "go")
        answers = []
        for process in self._processes:
            line = self._read(process)
            if not line:
                self._fail(process)
            answers += [StreamedRequest(**answer) for answer in json.loads(line)]
        for process in self._processes:
            process.communicate()
        return answers

    def _write(self, process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def _read(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def _fail(self, process: "subprocess.Popen[str]") -> None:
        for other in self._processes:
            if other is not process:
                other.kill()
                other.communicate()
        _, said = process.communicate()
        raise ValueError(f"a client of the benchmark failed: {said.strip().splitlines()[-1] if said.strip() else '?'}")


def spread(bodies: Sequence[str], *, streams: int, processes: int, host: str, port: int, path: str) -> list[StreamJob]:
    """Jobs that send the bodies, as equal as can be: stream i has every `streams`-th one from i on."""
    by_stream = [list(bodies[index::streams]) for index in range(streams)]
    shares = [by_stream[index::processes] for index in range(min(processes, streams))]
    return [StreamJob(host, port, path, share) for share in shares]
