"""Every answer is counted once, whoever gave it, and whatever went wrong."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorrt_lora.serve.request_record import RequestRecord
from tensorrt_lora.serve.response_counter import ResponseCounter

RECORD = RequestRecord("completions", streams=False)


def counted(app: ASGIApp, path: str = "/known", state: dict[str, object] | None = None) -> list[object]:
    """What is counted of one request."""
    seen: list[object] = []

    def count(route: str, status: int, record: RequestRecord | None) -> None:
        seen.append((route, status, record))

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None: ...

    scope: Scope = {"type": "http", "path": path} | ({} if state is None else {"state": state})
    asyncio.run(ResponseCounter(app, count=count, routes=frozenset({"/known"}))(scope, receive, send))
    return seen


def answering(status: int | None, act: Callable[[Scope], None] = lambda scope: None) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        act(scope)
        if status is not None:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"x"})

    return app


def test_routes_by_what_was_chosen_or_by_known_paths() -> None:
    assert counted(answering(200)) == [("/known", 200, None)]
    assert counted(answering(404), "/some/client's/idea") == [("other", 404, None)]
    chosen = answering(200, lambda scope: scope.update(route=SimpleNamespace(path="/v1/{name}")))
    assert counted(chosen, "/v1/any") == [("/v1/{name}", 200, None)]


def test_a_record_is_passed_on_and_no_state_is_shared() -> None:
    shared: dict[str, object] = {"a": 1}
    app = answering(200, lambda scope: scope["state"].update(record=RECORD))
    assert counted(app, state=shared) == [("/known", 200, RECORD)]
    assert shared == {"a": 1}


def test_a_client_that_went_away() -> None:
    assert counted(answering(None)) == [("/known", 499, None)]


def test_a_fault_of_the_application() -> None:
    seen: list[object] = []

    async def run() -> None:
        counter = ResponseCounter(broken, count=lambda *one: seen.append(one), routes=frozenset())
        await counter({"type": "http", "path": "/x"}, None, None)

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    assert seen == [("other", 500, None)]


def test_other_protocols_pass() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    counter = ResponseCounter(app, count=lambda *one: seen.append("counted"), routes=frozenset())
    asyncio.run(counter({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]
