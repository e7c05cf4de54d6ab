"""The HTTP application: routes, keys, and how mistakes are told.

Made by `run_server`, or by whoever serves it another way; `LLM` is given, so that tests bring their own.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from tensorrt_lora.serve.access_control import AccessControl
from tensorrt_lora.serve.adapter_routes import adapter_routes
from tensorrt_lora.serve.api_error import ENGINE_DEAD, ApiError
from tensorrt_lora.serve.client_connection import ClientGoneError
from tensorrt_lora.serve.openai_routes import openai_routes
from tensorrt_lora.serve.request_record import NullObserver, RequestObserver
from tensorrt_lora.serve.response_counter import ResponseCounter
from tensorrt_lora.serve.serve_config import ServeConfig
from tensorrt_lora.serve.server_metrics import ServerMetrics
from tensorrt_lora.serve.server_state import ServedEngine, ServerState
from tensorrt_lora.serve.status_routes import status_routes

VERSION = "0.1.0"
_SHOWN_PROBLEMS = 5


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetail


_STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 422, 429, 503, 504)
_ERRORS: dict[int | str, dict[str, object]] = {status: {"model": ErrorBody} for status in _STATUSES}


def create_app(
    engine: ServedEngine,
    config: ServeConfig,
    *,
    observer: RequestObserver | None = None,
    metrics: ServerMetrics | None = None,
) -> FastAPI:
    """The application around an engine, which stays the caller's. Its `state.server` is the `ServerState`.

    Args:
        engine: an `LLM`.
        config: the server's settings.
        observer: is told of every request that generates, in place of the metrics.
        metrics: counts, and renders /metrics; None leaves the route out.

    Raises ValueError for settings that this machine cannot follow.
    """
    state = ServerState(engine, config, observer or (NullObserver() if metrics is None else metrics.requests))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(state.warm_up())
        yield
        warming.cancel()
        with suppress(asyncio.CancelledError):
            await warming
        state.close()

    app = FastAPI(
        title="tensorrt-lora", version=VERSION, lifespan=lifespan, docs_url=None, redoc_url=None, responses=_ERRORS
    )
    app.state.server = state
    app.include_router(openai_routes(state, created=int(time.time())))
    app.include_router(adapter_routes(state))
    app.include_router(status_routes(state, version=VERSION, metrics=metrics))

    def tell_api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        if error.code == ENGINE_DEAD:
            state.failure = error.message
        return error.response()

    app.add_exception_handler(ApiError, tell_api_error)
    app.add_exception_handler(RequestValidationError, _tell_validation_error)
    app.add_exception_handler(HTTPException, _tell_http_error)
    app.add_exception_handler(ClientGoneError, _tell_nobody)
    app.add_middleware(
        AccessControl,
        api_key=None if config.api_key is None else config.api_key.get_secret_value(),
        admin_key=None if config.admin_key is None else config.admin_key.get_secret_value(),
        admin_enabled=config.enable_adapter_admin,
        max_body_bytes=config.max_body_bytes,
        body_timeout_s=config.body_timeout_s,
    )
    if metrics is not None:
        app.add_middleware(ResponseCounter, count=metrics.count_response, routes=frozenset(app.openapi()["paths"]))
    return app


def _tell_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    lines = [f"{_field(one['loc'])}: {one['msg']}" for one in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > len(lines):
        lines.append(f"and {len(problems) - len(lines)} more")
    return ApiError(400, "; ".join(lines), code="invalid_request", param=_field(problems[0]["loc"])).response()


def _tell_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = ApiError(error.status_code, str(error.detail), code="http_error").response()
    response.headers.update(error.headers or {})
    return response


def _tell_nobody(_: Request, error: Exception) -> Response:
    assert isinstance(error, ClientGoneError)
    return Response(status_code=499)


def _field(location: tuple[int | str, ...]) -> str:
    """The dotted field of the body; long names, which are the client's own, are cut."""
    parts = [str(part)[:60] for part in location if part != "body"]
    return ".".join(parts) or "body"
