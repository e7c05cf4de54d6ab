"""An answer that is no success, in OpenAI's shape.

Raised anywhere in `serve/`, turned into a response by the application. Holds what the client is told, no traceback.
"""

import json

from fastapi.responses import JSONResponse

from tensorrt_lora.adapters.adapter_error import AdapterErrorKind

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_RETRY_AFTER_S = "1"
ENGINE_DEAD = "engine_dead"
"""The code of the one error after which the server ends: only a new process helps."""

_ADAPTER_STATUS: dict[AdapterErrorKind, int] = {
    "bad_adapter": 400,
    "id_conflict": 409,
    "does_not_fit": 413,
    "unloaded": 404,
    "failed": 503,
}


class ApiError(Exception):
    """Status and reason of a refusal.

    Args:
        status: HTTP status.
        message: what is wrong and how to mend it.
        code: a stable word for programs.
        param: the field of the request that is wrong, if it is one.
    """

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    @classmethod
    def of_adapter(cls, message: str, kind: AdapterErrorKind) -> "ApiError":
        """What a client is told about an adapter that the engine refuses."""
        return cls(_ADAPTER_STATUS[kind], message, code=kind)

    def body(self) -> dict[str, object]:
        """OpenAI's error object."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers: dict[str, str] = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        elif self.status in (429, 503):
            headers["Retry-After"] = _RETRY_AFTER_S
        return AsciiJSONResponse(self.body(), status_code=self.status, headers=headers)


class AsciiJSONResponse(JSONResponse):
    """JSON whose text is escaped: half a surrogate pair of a client's comes back rather than breaks the answer."""

    def render(self, content: object) -> bytes:
        return json_bytes(content)


def json_bytes(content: object) -> bytes:
    """Compact ASCII JSON."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
