"""Who may call what, and how much may be sent: asked before anything of a request is read or parsed.

Plain ASGI around the whole application. Answers 401, 403, 408 and 413 itself; hands the application the whole body at
once, so that what it receives afterwards is the client's end.
"""

import asyncio
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorrt_lora.serve.api_error import ApiError

ADMIN_PATHS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
_PROTECTED = "/v1"


class AccessControl:
    """Keys and sizes.

    Args:
        app: what is behind.
        api_key, admin_key: bearer tokens; an `api_key` of None lets everybody in.
        admin_enabled: whether there are admin routes.
        max_body_bytes, body_timeout_s: limits of a request's body.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str | None,
        admin_key: str | None,
        admin_enabled: bool,
        max_body_bytes: int,
        body_timeout_s: float,
    ) -> None:
        self._app = app
        self._api_key = api_key
        self._admin_key = admin_key
        self._admin_enabled = admin_enabled
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_key(scope["path"], headers)
            body = await self._read_body(headers, receive)
        except ApiError as error:
            response = error.response()
            # The rest of the body may still be on its way: it is no next request.
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)

    def _check_key(self, path: str, headers: Headers) -> None:
        if not (path == _PROTECTED or path.startswith(_PROTECTED + "/")):
            return
        token = headers.get("authorization", "").removeprefix("Bearer ").strip()
        is_admin = self._admin_key is not None and _equal(token, self._admin_key)
        if path.rstrip("/") in ADMIN_PATHS:
            if not self._admin_enabled:
                raise ApiError(
                    403,
                    "adapters are not managed through this server: start it with enable_adapter_admin and an admin_key",
                    code="admin_disabled",
                )
            if not is_admin:
                raise ApiError(401, "this route needs the admin key as bearer token", code="invalid_admin_key")
        elif self._api_key is not None and not is_admin and not _equal(token, self._api_key):
            raise ApiError(401, "the API key is missing or wrong: send it as bearer token", code="invalid_api_key")

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None if the client went away before its end."""
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._max_body_bytes:
            raise self._too_large()
        try:
            return await asyncio.wait_for(self._receive_body(receive), self._body_timeout_s)
        except asyncio.TimeoutError as error:
            raise ApiError(
                408, f"the body did not arrive within {self._body_timeout_s:g} s", code="body_timeout"
            ) from error

    async def _receive_body(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than the {self._max_body_bytes} bytes that this server takes",
            code="body_too_large",
        )


def _equal(token: str, key: str) -> bool:
    # As bytes: of text, compare_digest takes ASCII only.
    return hmac.compare_digest(token.encode(), key.encode())


def _replayed(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
