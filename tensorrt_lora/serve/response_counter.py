"""Every answer by route and status, also those that no route gave.

Plain ASGI around the whole application, `AccessControl` included. What a route knows of its request it leaves in the
request's state.
"""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorrt_lora.serve.request_record import RequestRecord

_NO_ROUTE = "other"
_GONE = 499  # nothing was sent: the client went away


class ResponseCounter:
    """Calls `count(route, status, record)` at the end of each request; the record is None where nothing generates.

    Args:
        routes: paths that are counted by themselves where no route was chosen; all others together.
    """

    def __init__(
        self, app: ASGIApp, *, count: Callable[[str, int, RequestRecord | None], None], routes: frozenset[str]
    ) -> None:
        self._app = app
        self._count = count
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Of its own: a server may share one between requests.
        state = scope["state"] = dict(scope.get("state") or {})
        status = _GONE

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception:
            status = 500
            raise
        finally:
            record = state.get("record")
            self._count(self._route(scope), status, record if isinstance(record, RequestRecord) else None)

    def _route(self, scope: Scope) -> str:
        chosen = getattr(scope.get("route"), "path", None)
        if isinstance(chosen, str):
            return chosen
        return scope["path"] if scope["path"] in self._routes else _NO_ROUTE
