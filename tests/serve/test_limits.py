"""What is too large, too long, too much, too slow or too early is refused with a reason; who goes away cancels."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.serve.app import create_app
from tensorrt_lora.serve.serve_config import ServeConfig
from tests.support.tiny_models import make_tiny_tokenizer
from tests.support.toy_server import FOREVER, LongToyExecutor, ToyServer, toy_server

COMPLETIONS = "/v1/completions"
DEEP = b'{"model": "toy", "prompt": "a", "metadata": ' + b"[" * 900 + b"]" * 900 + b"}"
NO_REQUESTS = (b"", b"{", b"[" * 5000, b"null", b"\xff", b'{"model": NaN}', b'"text"', b"9" * 5000, DEEP)
LONG = {"model": "toy", "prompt": "abc", "max_tokens": FOREVER, "ignore_eos": True}


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    make_tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def toy(tokenizer_dir: Path) -> Iterator[ToyServer]:
    limits = {"max_body_bytes": 10_000, "max_concurrent_sequences": 4, "max_prompts": 3, "max_output_tokens": FOREVER}
    with toy_server(tokenizer_dir, **limits) as toy:
        yield toy


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does; fails after ten seconds."""
    end = monotonic() + 10
    while not condition():
        assert monotonic() < end, "it did not happen"
        sleep(0.005)


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_bodies_that_are_too_large(toy: ToyServer) -> None:
    body = json.dumps({"model": "toy", "prompt": "a" * 20_000}).encode()
    headers = {"content-type": "application/json"}
    assert error_of(toy.client.post(COMPLETIONS, content=body, headers=headers)) == (413, "body_too_large")
    chunks = (body[at : at + 1000] for at in range(0, len(body), 1000))  # no content-length
    assert error_of(toy.client.post(COMPLETIONS, content=chunks, headers=headers)) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"max_tokens": FOREVER + 1}, 422, "too_many_tokens"),
        ({"max_tokens": 10**12}, 422, "context_length_exceeded"),
        ({"max_tokens": 10**400}, 422, "context_length_exceeded"),
        ({"n": 5}, 422, "too_many_sequences"),
        ({"prompt": ["a"] * 3, "n": 2}, 422, "too_many_sequences"),
        ({"prompt": ["a"] * 4}, 422, "too_many_prompts"),
        ({"max_tokens": 0}, 400, "invalid_request"),
        ({"prompt": ""}, 400, "invalid_request"),
        ({"prompt": []}, 400, "invalid_request"),
        ({"prompt": ["a", ""]}, 400, "invalid_request"),
        ({"prompt": [[1], []]}, 400, "invalid_request"),
        ({"prompt": [1, -1]}, 400, "invalid_token"),
        ({"prompt": [60_000]}, 400, "invalid_token"),
        ({"prompt": "\ud800"}, 400, "invalid_prompt"),
        ({"temperature": "hot"}, 400, "invalid_request"),
        ({"temperature": True}, 400, "invalid_request"),
        ({"unknown_field": 1}, 400, "invalid_request"),
        ({"min_tokens": 9, "max_tokens": 3}, 400, "invalid_value"),
        ({"stream_options": {"include_usage": True}}, 400, None),
        ({"logit_bias": {"1": 2}}, 400, "invalid_request"),
    ],
)
def test_requests_that_ask_for_what_is_not_served(
    toy: ToyServer, fields: dict[str, object], status: int, code: str | None
) -> None:
    body = json.dumps({"model": "toy", "prompt": "abc", **fields})
    response = toy.client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert error_of(response) == (status, code), response.text
    assert len(response.text) < 1000


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 5000, b"null", b"\xff", b'{"model": NaN}', b'"text"', b"9" * 5000, DEEP]
)
def test_bodies_that_are_no_request(toy: ToyServer, body: bytes) -> None:
    response = toy.client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["message"]


def test_ignored_fields_and_nulls_change_nothing(toy: ToyServer) -> None:
    plain = {"model": "toy", "prompt": "abc", "max_tokens": 4}
    noise = {"user": "me", "metadata": {"a": 1}, "store": False, "service_tier": "auto", "temperature": None, "n": None}
    texts = [toy.client.post(COMPLETIONS, json=body).json()["choices"][0]["text"] for body in (plain, plain | noise)]
    assert texts == ["abca", "abca"]


@pytest.mark.parametrize("streams", [True, False])
def test_who_goes_away_cancels_and_makes_room(toy: ToyServer, streams: bool) -> None:
    body = {**LONG, "n": 4, "temperature": 1.0, "stream": streams}
    num_finished = len(toy.recorder.finished)
    with httpx.Client(base_url=toy.url) as client:
        if streams:
            with client.stream("POST", COMPLETIONS, json=body) as response:
                lines = response.iter_lines()  # kept: the stream closes with it
                assert next(lines).startswith("data: {")
                assert error_of(toy.client.post(COMPLETIONS, json=body)) == (429, "too_many_requests")
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(COMPLETIONS, json=body, timeout=0.5)
    eventually(lambda: toy.state.gate.is_idle)
    assert toy.state.gate.num_running == 0
    eventually(lambda: toy.llm.stats().requests_running == 0)
    ended = toy.recorder.finished[num_finished:]
    assert [record.outcome for record in ended] == (["refused", "abort"] if streams else ["abort"])
    assert toy.client.post(COMPLETIONS, json={"model": "toy", "prompt": "abc", "max_tokens": 2}).status_code == 200


def test_a_place_is_free_when_a_client_sees_the_end(toy: ToyServer) -> None:
    body = {"model": "toy", "prompt": "abc", "max_tokens": 2, "n": 4, "temperature": 1.0, "stream": True}
    for _ in range(50):
        with toy.client.stream("POST", COMPLETIONS, json=body) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    break  # and on to the next request, over another connection


def test_records_tell_what_was_counted(toy: ToyServer) -> None:
    body = {"model": "toy", "prompt": "abc", "max_tokens": 5, "n": 2, "temperature": 1.0, "stream": True}
    assert toy.client.post(COMPLETIONS, json=body).text.endswith("data: [DONE]\n\n")
    eventually(lambda: len(toy.recorder.started) == len(toy.recorder.finished))
    record = toy.recorder.finished[-1]
    assert (record.endpoint, record.streams, record.adapter, record.outcome) == ("completions", True, None, "ok")
    assert (record.prompt_tokens, record.completion_tokens) == (3, 10)
    times = [record.received_at, record.submitted_at, record.first_token_at, record.last_token_at, record.finished_at]
    assert times == sorted(times)


@pytest.mark.parametrize("streams", [True, False])
def test_time_is_up(tokenizer_dir: Path, streams: bool) -> None:
    with toy_server(tokenizer_dir, request_timeout_s=0.3) as toy:
        response = toy.client.post(COMPLETIONS, json={**LONG, "stream": streams})
        if streams:
            assert response.status_code == 200
            *_, error, done, _ = response.text.split("\n\n")
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == "timeout" and done == "data: [DONE]"
        else:
            assert error_of(response) == (504, "timeout")
        eventually(lambda: toy.llm.stats().requests_running == 0)
        assert [record.outcome for record in toy.recorder.finished] == ["timeout"]


def test_a_body_that_does_not_come(tokenizer_dir: Path) -> None:
    with toy_server(tokenizer_dir, body_timeout_s=0.2) as toy:
        host, port = toy.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 408") and b"body_timeout" in answer


def test_draining_finishes_what_runs_and_takes_nothing_new(tokenizer_dir: Path) -> None:
    with toy_server(tokenizer_dir) as toy:
        body = {"model": "toy", "prompt": "abc", "max_tokens": 400, "stream": True}
        with toy.client.stream("POST", COMPLETIONS, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            toy.state.gate.close()
            assert error_of(httpx.post(toy.url + COMPLETIONS, json=LONG)) == (503, "shutting_down")
            assert error_of(httpx.get(f"{toy.url}/ready")) == (503, "shutting_down")
            assert httpx.get(f"{toy.url}/health").status_code == 200
            assert [line for line in lines if line][-1] == "data: [DONE]"
        eventually(lambda: toy.state.gate.is_idle)


def test_aborting_tells_the_clients(tokenizer_dir: Path) -> None:
    with toy_server(tokenizer_dir) as toy:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(toy.client.post(COMPLETIONS, json=LONG)))
        thread.start()
        eventually(lambda: toy.llm.stats().requests_running == 1)
        toy.state.gate.close()
        toy.state.gate.abort_all()
        thread.join(10)
        assert error_of(answers[0]) == (503, "shutting_down")


def test_keys(tokenizer_dir: Path) -> None:
    with toy_server(tokenizer_dir, api_key="secret", admin_key="boss") as toy:
        get, post = toy.client.get, toy.client.post
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret2"}):
            assert error_of(get("/v1/models", headers=headers)) == (401, "invalid_api_key")
            assert error_of(post(COMPLETIONS, headers=headers, content=b"{")) == (401, "invalid_api_key")
        for key in ("secret", "boss"):
            assert get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        admin = post("/v1/load_lora_adapter", headers={"Authorization": "Bearer boss"}, json={})
        assert error_of(admin) == (403, "admin_disabled")
        for path in ("/health", "/ready", "/version"):
            assert get(path).status_code == 200


def test_unknown_routes_have_openais_shape(toy: ToyServer) -> None:
    assert error_of(toy.client.get("/v1/embeddings")) == (404, "http_error")
    assert error_of(toy.client.get(COMPLETIONS)) == (405, "http_error")


def test_adapters_are_not_ready_before_they_are_warm(tokenizer_dir: Path) -> None:
    """The application without its start-up: nothing is loaded yet."""
    config = ServeConfig.from_yaml(None, {"engine": {"model": str(tokenizer_dir), "executor": "inline"}})

    async def run(llm: LLM) -> None:
        app = create_app(llm, config)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            assert (await client.get("/health")).status_code == 200
            assert error_of(await client.get("/ready")) == (503, "starting")
            body = {"model": config.base_names[0], "prompt": "a"}
            assert error_of(await client.post(COMPLETIONS, json=body)) == (503, "starting")
            await app.state.server.warm_up()
            assert (await client.get("/ready")).status_code == 200
            assert (await client.post(COMPLETIONS, json=body)).status_code == 200

    with LLM(args=config.engine, progress=False, executor_factory=LongToyExecutor) as llm:
        asyncio.run(run(llm))


def test_a_preload_that_fails_is_told(tokenizer_dir: Path) -> None:
    settings = {"engine": {"model": str(tokenizer_dir), "executor": "inline"}, "loras": {"x": "missing"}}
    config = ServeConfig.from_yaml(None, settings)
    with LLM(args=config.engine, progress=False, executor_factory=LongToyExecutor) as llm:
        state = create_app(llm, config).state.server
        asyncio.run(state.warm_up())
        assert state.failure is not None and "the path does not exist" in state.failure
        assert state.gate.phase == "starting"
