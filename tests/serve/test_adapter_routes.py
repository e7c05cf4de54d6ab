"""Adapters come, change and go while the server runs; what may not be loaded is refused with the right code."""

import json
import shutil

import pytest

from tensorrt_lora.sampling_params import SamplingParams
from tests.serve.conftest import ADMIN_KEY, Offline, Served, make_adapter

PROMPT = "In the beginning"


def answer(served: Served, model: str) -> str:
    response = served.post("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 10, "temperature": 0})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def statuses(served: Served, name: str) -> list[dict[str, object]]:
    response = served.get("/v1/adapters")
    assert response.status_code == 200
    return [card for card in response.json()["data"] if card["name"] == name]


def test_load_use_unload(served: Served, offline: Offline) -> None:
    loaded = served.admin("load", lora_name="fresh", lora_path="green", pinned=True)
    assert loaded.status_code == 200, loaded.text
    assert (loaded.json()["name"], loaded.json()["state"], loaded.json()["pinned"]) == ("fresh", "ready", True)
    [card] = statuses(served, "fresh")
    assert card["rank"] == 4 and card["host_bytes"] > 0 and card["users"] == 0 and card["version"]
    expected = offline.llm.generate(PROMPT, SamplingParams(max_tokens=10), offline.adapter("green"))
    assert answer(served, "fresh") == expected.outputs[0].text
    assert served.admin("unload", lora_name="fresh").status_code == 200
    assert statuses(served, "fresh") == []
    response = served.post("/v1/completions", {"model": "fresh", "prompt": PROMPT})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_replaced_in_place_while_a_request_runs(served: Served, offline: Offline) -> None:
    """The running stream finishes on its version; the next request has the new one."""
    path = make_adapter(served.root / "moving", seed=11)
    make_adapter(served.root / "old-copy", seed=11)
    assert served.admin("load", lora_name="moving", lora_path="moving").status_code == 200
    client = served.client()
    stream = client.completions.create(model="moving", prompt=PROMPT, max_tokens=90, temperature=0, stream=True)
    first = next(iter(stream)).choices[0].text
    shutil.rmtree(path)
    make_adapter(path, seed=12)
    replaced = served.admin("load", lora_name="moving", lora_path="moving", load_inplace=True)
    assert replaced.status_code == 200, replaced.text
    old = offline.llm.generate(PROMPT, SamplingParams(max_tokens=90), offline.adapter("old-copy"))
    new = offline.llm.generate(PROMPT, SamplingParams(max_tokens=10), offline.adapter("moving"))
    assert answer(served, "moving") == new.outputs[0].text
    assert first + "".join(chunk.choices[0].text for chunk in stream) == old.outputs[0].text
    assert [card["version"] for card in statuses(served, "moving")] == [replaced.json()["version"]]
    assert served.admin("unload", lora_name="moving").status_code == 200
    shutil.rmtree(path)


def test_a_failed_replacement_leaves_the_old_one(served: Served) -> None:
    path = make_adapter(served.root / "careful", seed=13)
    assert served.admin("load", lora_name="careful", lora_path="careful").status_code == 200
    before = answer(served, "careful")
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "IA3"}))
    response = served.admin("load", lora_name="careful", lora_path="careful", load_inplace=True)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_adapter")
    assert answer(served, "careful") == before
    served.admin("unload", lora_name="careful")
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"lora_name": "red", "lora_path": "red"}, 409, "adapter_exists"),
        ({"lora_name": "tiny", "lora_path": "red"}, 409, "adapter_exists"),
        ({"lora_name": "x", "lora_path": "nowhere"}, 404, "adapter_not_found"),
        ({"lora_name": "x", "lora_path": "team"}, 404, "adapter_not_found"),
        ({"lora_name": "x", "lora_path": "../outside"}, 400, "path_outside_root"),
        ({"lora_name": "x", "lora_path": "/etc"}, 400, "path_outside_root"),
        ({"lora_name": "x", "lora_path": "/etc/nothing-there"}, 400, "path_outside_root"),
        ({"lora_name": "x", "lora_path": "escape"}, 400, "path_outside_root"),
        ({"lora_name": "x", "lora_path": "~root"}, 404, "adapter_not_found"),
        ({"lora_name": "x", "lora_path": "a\0b"}, 400, "invalid_path"),
        ({"lora_name": "x", "lora_path": "a" * 200}, 404, "adapter_not_found"),
        ({"lora_name": "../x", "lora_path": "red"}, 400, "invalid_name"),
        ({"lora_name": "", "lora_path": "red"}, 400, "invalid_name"),
        ({"lora_name": "x", "lora_path": ""}, 400, "invalid_request"),
        ({"lora_name": "x"}, 400, "invalid_request"),
        ({"lora_name": "x", "lora_path": "red", "is_3d_lora_weight": True}, 400, "invalid_request"),
        ({"lora_name": "x", "lora_path": "owner/name"}, 404, "adapter_not_found"),
    ],
)
def test_refused_loads(served: Served, body: dict[str, object], status: int, code: str) -> None:
    before = served.get("/v1/adapters").json()
    response = served.admin("load", **body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    assert [card["id"] for card in served.get("/v1/adapters").json()["data"]] == [card["id"] for card in before["data"]]


def test_no_pickle(served: Served) -> None:
    path = make_adapter(served.root / "pickled", seed=1)
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    for response in (
        served.admin("load", lora_name="pickled", lora_path="pickled"),
        served.post("/v1/completions", {"model": "pickled", "prompt": "a"}),
    ):
        assert response.status_code == 400 and "pickled weights" in response.json()["error"]["message"]
    shutil.rmtree(path)


def test_a_file_that_leads_out_of_the_root(served: Served) -> None:
    path = make_adapter(served.root / "linked", seed=1)
    weights = path / "adapter_model.safetensors"
    weights.unlink()
    weights.symlink_to(served.root.parent / "outside" / weights.name)
    response = served.post("/v1/completions", {"model": "linked", "prompt": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "path_outside_root")
    shutil.rmtree(path)


@pytest.mark.parametrize(
    "model", ["../outside", "escape", "team/nested", "team", ".", "..", "", "/", "red/../green", "a\0b", "x" * 10_000]
)
def test_models_that_are_no_child_of_the_root(served: Served, model: str) -> None:
    response = served.post("/v1/completions", {"model": model, "prompt": "a"})
    assert response.status_code == (400 if model == "escape" else 404), response.text
    assert len(response.text) < 500


@pytest.mark.parametrize(
    ("lora", "status", "code"),
    [
        ({"lora_name": "x", "lora_path": "/etc"}, 400, "path_outside_root"),
        ({"lora_name": "red", "lora_path": "green"}, 409, "adapter_exists"),
        ({"lora_name": "violet"}, 404, "model_not_found"),
        ({"lora_path": "team"}, 404, "adapter_not_found"),
    ],
)
def test_refused_lora_requests(served: Served, lora: dict[str, object], status: int, code: str) -> None:
    response = served.post("/v1/completions", {"model": "tiny", "prompt": "a", "lora_request": lora})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text


def test_a_path_is_called_by_its_place(served: Served, offline: Offline) -> None:
    """A client cannot give a name of its choice to an adapter of its choice."""
    fields = {"model": "tiny", "prompt": PROMPT, "max_tokens": 10, "temperature": 0}
    response = served.post(
        "/v1/completions", fields | {"lora_request": {"lora_name": "team", "lora_path": "team/nested"}}
    )
    expected = offline.llm.generate(PROMPT, SamplingParams(max_tokens=10), offline.adapter("team/nested"))
    assert response.json()["choices"][0]["text"] == expected.outputs[0].text
    assert answer(served, "team/nested") == expected.outputs[0].text
    assert served.post("/v1/completions", {"model": "team", "prompt": "a"}).status_code == 404
    assert served.admin("unload", lora_name="team/nested").status_code == 200


def test_two_adapters_in_one_request(served: Served) -> None:
    response = served.post("/v1/completions", {"model": "red", "prompt": "a", "lora_request": {"lora_name": "green"}})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "conflicting_adapters")


def test_unloads_of_what_is_not_there(served: Served) -> None:
    assert served.admin("unload", lora_name="violet").status_code == 404
    assert served.admin("unload", lora_name="tiny").status_code == 400


def test_a_path_too_long_for_the_disk(served: Served) -> None:
    assert served.admin("load", lora_name="x", lora_path="a" * 5000).status_code in (400, 404)


@pytest.mark.parametrize("action", ["load", "unload"])
def test_admin_routes_need_their_key(served: Served, action: str) -> None:
    for key in ("user-key", "wrong", "admin-key-and-more"):
        response = served.post(f"/v1/{action}_lora_adapter", {"lora_name": "red", "lora_path": "red"}, key=key)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_admin_key")
    assert served.get("/v1/models", key=ADMIN_KEY).status_code == 200


def test_unloading_frees_both_tiers_after_the_last_user(served: Served) -> None:
    path = make_adapter(served.root / "brief", seed=21)
    assert served.admin("load", lora_name="brief", lora_path="brief").status_code == 200
    stream = served.client().completions.create(
        model="brief", prompt=PROMPT, max_tokens=100, n=2, seed=1, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert served.admin("unload", lora_name="brief").status_code == 200
    for _ in stream:
        pass
    assert statuses(served, "brief") == []
    shutil.rmtree(path)
