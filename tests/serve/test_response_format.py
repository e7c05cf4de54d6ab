"""OpenAI's response_format: the answer is JSON, of a schema where there is one."""

import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from tests.serve.conftest import Served

MESSAGES = [{"role": "user", "content": "Hi"}]


class Point(BaseModel, extra="forbid"):
    x: Literal[1, 22, 333]
    kind: Literal["a", "bc"]


@pytest.mark.parametrize("model", ["tiny", "red"])
def test_parsed_by_the_official_client(served: Served, model: str) -> None:
    answer = served.client().chat.completions.parse(
        model=model, messages=MESSAGES, response_format=Point, temperature=0, max_tokens=300
    )
    point = answer.choices[0].message.parsed
    assert isinstance(point, Point) and answer.choices[0].finish_reason == "stop"


def test_streams_and_choices(served: Served) -> None:
    schema = {"name": "point", "strict": True, "schema": Point.model_json_schema()}
    texts = dict.fromkeys(range(3), "")
    for chunk in served.client().chat.completions.create(
        model="red", messages=MESSAGES, n=3, seed=1, max_tokens=300, stream=True,
        response_format={"type": "json_schema", "json_schema": schema},
    ):  # fmt: skip
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    for text in texts.values():
        Point.model_validate_json(text)


def test_completions_and_plain_objects(served: Served) -> None:
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 100, "temperature": 0}
    response = served.post("/v1/completions", body | {"response_format": {"type": "json_object"}}).json()
    [choice] = response["choices"]
    assert choice["text"].lstrip().startswith("{")
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["text"]), dict)
    plain = served.post("/v1/completions", body | {"response_format": {"type": "text"}}).json()
    assert plain["choices"][0]["text"] == served.post("/v1/completions", body).json()["choices"][0]["text"]


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "frog"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "file:///etc/passwd"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"description": "x" * 100_000}}},
        {"type": "grammar", "grammar": "x"},
        {"type": "json_object", "extra": 1},
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_forms_that_are_not_served(served: Served, form: dict[str, object], streams: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        served.client().chat.completions.create(
            model="tiny", messages=MESSAGES, response_format=form, stream=streams, max_tokens=9
        )
    assert len(caught.value.message) < 1000


def test_a_form_says_when_it_ends(served: Served) -> None:
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 9, "response_format": {"type": "json_object"}}
    response = served.post("/v1/completions", body | {"ignore_eos": True})
    assert response.status_code == 400 and "leave out" in response.json()["error"]["message"]
