"""HTTP clients that read streams, in a process of their own.

    python -m tensorrt_lora.bench.stream_clients

Reads a job from standard input, connects, says "ready", waits for a line, runs, and writes what it saw; see
`StreamJob` and `StreamedRequest`. Started by `ClientProcesses`. Plain sockets and the standard library alone: what is
measured is the server, and starting takes no time.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class StreamJob:
    """Streams at once, each a list of request bodies (JSON) that are sent one after the other over one connection."""

    host: str
    port: int
    path: str
    streams: list[list[str]]


@dataclass(slots=True)
class StreamedRequest:
    """One answer, in seconds of the system's monotonic clock.

    Attributes:
        sent: when the request was written.
        events: when each event with something new was read.
        done: when the stream ended.
        num_tokens: that the server says it generated.
    """

    sent: float
    events: list[float]
    done: float
    num_tokens: int


async def run_job(job: StreamJob) -> list[StreamedRequest]:
    """Waits for a line on standard input once all connections are open."""
    connections = [await asyncio.open_connection(job.host, job.port) for _ in job.streams]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    answers = await asyncio.gather(
        *(
            _run_stream(job, bodies, reader, writer)
            for bodies, (reader, writer) in zip(job.streams, connections, strict=True)
        )
    )
    return [answer for stream in answers for answer in stream]


async def _run_stream(
    job: StreamJob, bodies: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> list[StreamedRequest]:
    answers = []
    for text in bodies:
        body = text.encode()
        head = (
            f"POST {job.path} HTTP/1.1\r\nHost: {job.host}:{job.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answers.append(await _read_answer(reader))
    writer.close()
    return answers


async def _read_answer(reader: asyncio.StreamReader) -> StreamedRequest:
    """One event stream in chunks. Events are whole lines, so the lines between them can be passed over."""
    sent = time.perf_counter()
    status = await reader.readline()
    if b" 200 " not in status:
        rest = (await reader.read(2000)).decode(errors="replace")
        raise RuntimeError(f"the server answered {status.decode().strip()}: {' '.join(rest.split())}")
    events: list[float] = []
    num_tokens = 0
    while (line := await reader.readline()) != b"data: [DONE]\n":
        if not line:
            raise RuntimeError("the server closed the connection")
        if not line.startswith(b"data: "):
            continue
        if b'"usage":{' in line:
            num_tokens = json.loads(line[6:])["usage"]["completion_tokens"]
        elif b'"error":' in line:
            raise RuntimeError(f"the stream broke: {line.decode()}")
        else:
            events.append(time.perf_counter())
    done = time.perf_counter()
    while await reader.readline() not in (b"0\r\n", b""):
        pass
    await reader.readline()
    return StreamedRequest(sent, events, done, num_tokens)


def main() -> None:
    job = StreamJob(**json.loads(sys.stdin.readline()))
    print(json.dumps([asdict(answer) for answer in asyncio.run(run_job(job))]), flush=True)


if __name__ == "__main__":
    main()
