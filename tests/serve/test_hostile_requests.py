"""Whatever is sent, no answer is a 500, and nothing changes: generated from the OpenAPI schema, then by hand."""

import http.client
import json
import random
from contextlib import suppress

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from tests.serve.conftest import Served

_SETTINGS = settings(
    max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")
_PATHS = (
    "/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/..%2f..%2fetc/passwd", "//etc/passwd",
    "/v1//completions", "/v1/load_lora_adapter/", "/V1/load_lora_adapter", "/v1/%6coad_lora_adapter",
    "/v1/models/%00", "/v1/models/%ff%fe", "/metrics", "/docs", "/redoc", "/openapi.json", "/" + "a" * 5000,
)  # fmt: skip
_TEXTS = ("../outside", "/etc/passwd", "..", "escape", "a\0b", "\ud800", "x" * 5000, "red\n", "%2e%2e", "{{7*7}}", "")
_WRONG = (None, [], {}, -1, 1e308, 10**30, True, "x", [[]], {"a": {}}, "\ud800", [None], "x" * 2000)


def request(served: Served, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """Sent as it is: clients with manners would mend the path."""
    host, port = served.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def post(served: Served, path: str, body: object, key: str = "user-key") -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    return request(served, "POST", path, data, headers)


def names(served: Served) -> list[str]:
    return [card["id"] for card in served.get("/v1/models").json()["data"]]


@pytest.fixture(autouse=True)
def _nothing_changes(served: Served):
    before = names(served)
    yield
    assert names(served) == before
    assert served.app.state.server.gate.is_idle
    response = served.post("/v1/completions", {"model": "red", "prompt": "abc", "max_tokens": 2})
    assert response.status_code == 200


def test_generated_from_the_schema(served: Served) -> None:
    """Bodies that follow the schema and bodies that do not; the admin routes answer 401 to the users' key."""
    schema = schemathesis.openapi.from_dict(served.app.openapi())
    statuses: list[int] = []

    def call(case: schemathesis.Case) -> None:
        case.headers = {**(case.headers or {}), "Authorization": "Bearer user-key"}
        response = case.call(base_url=served.url, timeout=30)
        statuses.append(response.status_code)
        assert response.status_code < 500, response.text
        assert response.status_code == 401 or not case.path.endswith("_lora_adapter")

    for operation in (result.ok() for result in schema.get_all_operations()):
        for mode in schemathesis.GenerationMode:
            check = _SETTINGS(given(operation.as_strategy(generation_mode=mode))(call))
            with suppress(Unsatisfiable):  # a route without a body has nothing that could be wrong
                check()
    assert len(statuses) >= 200 and {400, 401} <= set(statuses)


@pytest.mark.parametrize("path", _PATHS)
def test_paths(served: Served, path: str) -> None:
    for method in _METHODS:
        status, body = request(served, method, path, b"{}", {"Authorization": "Bearer user-key"})
        assert status < 500 and b"root:" not in body
        assert method != "POST" or status >= 400


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("key", ["user-key", "wrong"])
def test_wrong_values_of_every_field(served: Served, route: str, key: str) -> None:
    good = {"model": "tiny", "prompt": "abc"} if route == "/v1/completions" else {
        "model": "tiny", "messages": [{"role": "user", "content": "abc"}],
    }  # fmt: skip
    good |= {"max_tokens": 2}
    schema = served.app.openapi()
    name = "CompletionBody" if route == "/v1/completions" else "ChatCompletionBody"
    for field in schema["components"]["schemas"][name]["properties"]:
        for value in _WRONG:
            status, body = post(served, route, {**good, field: value}, key)
            assert status < 500, (field, value, body)
            assert key != "wrong" or status == 401
            json.loads(body) if not body.startswith(b"data:") else None


@pytest.mark.parametrize("text", _TEXTS)
def test_texts_in_every_place_of_a_name_or_path(served: Served, text: str) -> None:
    completion = {"prompt": "abc", "max_tokens": 2}
    bodies = [
        {**completion, "model": text},
        {**completion, "model": "tiny", "lora_request": {"lora_name": text}} if text else {"model": text},
        {**completion, "model": "tiny", "lora_request": {"lora_path": text or "/"}},
        {**completion, "model": "tiny", "lora_request": {"lora_name": "red", "lora_path": text or "/"}},
    ]
    for body in bodies:
        status, answer = post(served, "/v1/completions", body)
        assert 400 <= status < 500, (body, answer)
        assert len(answer) < 1000
    for action in ("load", "unload"):
        for key in ("user-key", "admin-key"):
            status, answer = post(served, f"/v1/{action}_lora_adapter", {"lora_name": text, "lora_path": text}, key)
            assert 400 <= status < 500, answer


def test_spoiled_bodies(served: Served) -> None:
    """Bytes of a good request, changed, cut and doubled."""
    good = json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": 2, "stop": ["x"], "stream": False}).encode()
    draw = random.Random(0)
    for _ in range(100):
        body = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(body))
            body[at : at + draw.randint(0, 3)] = bytes(draw.randrange(256) for _ in range(draw.randint(0, 3)))
        status, answer = post(served, "/v1/completions", bytes(body))
        assert status < 500, (body, answer)
        json.loads(answer)
