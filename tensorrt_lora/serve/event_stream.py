"""Server-sent events to one client.

Owns the response of a stream: its head, its frames, and its end when the client goes away. Plain ASGI, since it runs
for every token.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tensorrt_lora.serve.api_error import json_bytes
from tensorrt_lora.serve.client_connection import ClientGoneError, while_connected

DONE = b"data: [DONE]\n\n"
_GRACE_S = 5.0  # for the last frames of a client that is slow but there


def frame(content: object) -> bytes:
    """One event."""
    return b"data: " + json_bytes(content) + b"\n\n"


class EventStream(Response):
    """Sends what `frames` yields.

    Args:
        frames: bytes of whole events; closed in every case.
        close: called once at the end, however it comes.
        deadline: of the event loop's clock; a client that does not read is cut off a little later.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None], *, close: Callable[[], None], deadline: float) -> None:
        self.status_code = 200
        self.background = None
        self._frames = frames
        self._close = close
        self._deadline = deadline
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        timeout = max(0.0, self._deadline - asyncio.get_running_loop().time()) + _GRACE_S
        try:
            await while_connected(receive, self._send(send), timeout_s=timeout)
        except (ClientGoneError, TimeoutError):
            pass  # nobody reads, so there is nobody to tell
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for data in self._frames:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                # With news always there and room to write, nothing above waits: others have their turn here.
                await asyncio.sleep(0)
        finally:
            await self._frames.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
