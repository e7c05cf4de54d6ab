"""Client processes against a server that says what the test wants: what they send, what they count, how they fail."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tensorrt_lora.bench.client_processes import ClientProcesses, spread
from tensorrt_lora.bench.stream_clients import StreamJob

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(num_events: int, num_tokens: int) -> bytes:
    """Events in chunks: the first has a chunk of its own, the others share one."""
    event = b'data: {"choices": [{"text": "a"}],"usage":null}\n\n'
    usage = b'data: {"choices":[],"usage":{"completion_tokens": %d}}\n\n' % num_tokens
    rest = event * (num_events - 1) + usage + b"data: [DONE]\n\n"
    return HEAD + chunk(event) + chunk(rest) + b"0\r\n\r\n"


@contextmanager
def server(reply: bytes) -> Iterator[tuple[int, list[dict[str, object]]]]:
    """Its port, and the bodies that it got; every request gets the same reply."""
    bodies: list[dict[str, object]] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while request := lines.readline():
                assert request == b"POST /v1/completions HTTP/1.1\r\n"
                headers = dict(line.decode().strip().split(": ") for line in iter(lines.readline, b"\r\n"))
                bodies.append(json.loads(lines.read(int(headers["Content-Length"]))))
                connection.sendall(reply)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1], bodies
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def jobs(port: int, count: int, *, streams: int, processes: int) -> list[StreamJob]:
    bodies = [json.dumps({"index": index}) for index in range(count)]
    return spread(bodies, streams=streams, processes=processes, host="127.0.0.1", port=port, path="/v1/completions")


def test_streams_are_spread_over_processes() -> None:
    by_process = [job.streams for job in jobs(1, 7, streams=3, processes=2)]
    numbers = [[[json.loads(body)["index"] for body in stream] for stream in streams] for streams in by_process]
    assert numbers == [[[0, 3, 6], [2, 5]], [[1, 4]]]
    assert len(jobs(1, 2, streams=2, processes=5)) == 2


def test_every_request_is_sent_and_counted() -> None:
    with server(answer(num_events=5, num_tokens=9)) as (port, bodies):
        answers = ClientProcesses(jobs(port, 6, streams=3, processes=2)).run()
    assert sorted(body["index"] for body in bodies) == list(range(6))
    assert [(one.num_tokens, len(one.events)) for one in answers] == [(9, 5)] * 6
    for one in answers:
        times = [one.sent, *one.events, one.done]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b'HTTP/1.1 422 Unprocessable\r\ncontent-length: 8\r\n\r\ntoo long', "422 Unprocessable.*too long"),
        (HEAD + chunk(b'data: {"error":{"message":"gone"}}\n\n'), "gone"),
    ],
)  # fmt: skip
def test_failures_are_told(reply: bytes, message: str) -> None:
    with server(reply) as (port, _), pytest.raises(ValueError, match=f"(?s){message}"):
        ClientProcesses(jobs(port, 2, streams=2, processes=2)).run()


def test_nobody_listens() -> None:
    with pytest.raises(ValueError, match=r"a client of the benchmark failed: .*Connect call failed"):
        ClientProcesses(jobs(1, 1, streams=1, processes=1))
