"""Does something for a client as long as it is there.

Called by the routes and by `EventStream`. The request's body must have been received: whatever comes then is the end.
"""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed the connection; nobody reads an answer."""


async def while_connected(receive: Receive, work: Coroutine[object, object, T], *, timeout_s: float | None = None) -> T:
    """The result of `work`, which is cancelled when the client goes away or time is up.

    Raises ClientGoneError or TimeoutError then, and whatever `work` raises.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError if watching.done() else TimeoutError
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
        # Until the work has really ended: it still holds what it will give back.
        await asyncio.wait({working, watching})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
