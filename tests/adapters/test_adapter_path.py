"""Paths as they are, hub ids from the local cache; nothing here asks the network."""

from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from tensorrt_lora.adapters import adapter_path
from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterProblems
from tensorrt_lora.adapters.adapter_path import resolve_adapter_path
from tests.support.tiny_adapters import config_fields, random_tensors, write_adapter


def _resolve(path: str) -> Path:
    return resolve_adapter_path(path, AdapterProblems("a1", path))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An offline hub cache, as the hub's client lays it out; returns where a snapshot's files go."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def snapshot(repo: str) -> Path:
        root = tmp_path / f"models--{repo.replace('/', '--')}"
        (root / "refs").mkdir(parents=True)
        (root / "refs" / "main").write_text("0" * 40)
        directory = root / "snapshots" / ("0" * 40)
        directory.mkdir(parents=True)
        return directory

    return snapshot


def test_a_hub_id_in_the_cache_is_its_snapshot(hub, sites, read):
    directory = write_adapter(hub("owner/pirate"), random_tensors(sites, ("q_proj",), 4), config_fields(4, ["q_proj"]))
    assert _resolve("owner/pirate").resolve() == directory.resolve()
    assert len(read("owner/pirate").modules) == 2


def test_a_hub_id_that_is_nowhere(hub):
    message = r"adapter 'a1' \(owner/gone\): neither an existing path, nor in the local hub cache, nor reachable"
    with pytest.raises(AdapterError, match=message):
        _resolve("owner/gone")


def test_a_part_of_an_adapter_in_the_cache_is_not_enough(hub, refuse):
    (hub("owner/half") / "adapter_config.json").write_text("{}")
    assert "found neither adapter_model.safetensors nor adapter_model.bin" in refuse("owner/half")


def test_the_cache_is_asked_before_the_network(monkeypatch, tmp_path):
    asked = []

    def download(repo, *, local_files_only=False, **_):
        asked.append(local_files_only)
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        return str(tmp_path)

    monkeypatch.setattr(adapter_path, "snapshot_download", download)
    assert _resolve("owner/name") == tmp_path and asked == [True, False]


@pytest.mark.parametrize("path", ["gone", "./gone/name", "/gone/name", "../gone", "gone/of/three", "-gone/name"])
def test_what_is_no_hub_id_is_a_path_and_needs_no_network(monkeypatch, path):
    monkeypatch.setattr(adapter_path, "snapshot_download", None)
    assert _resolve(path) == Path(path)


def test_an_existing_path_wins(monkeypatch, tmp_path):
    monkeypatch.setattr(adapter_path, "snapshot_download", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert _resolve("owner/name") == Path("owner/name")


def test_the_home_directory_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pirate").mkdir()
    assert _resolve("~/pirate") == tmp_path / "pirate"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("x" * 5000, "the path cannot be used: File name too long"),
        ("owner/" + "x" * 5000, "the path cannot be used: File name too long"),
        ("~nosuchuser/x", "the path begins with the home directory of a user who does not exist"),
    ],
    ids=["long", "long hub id", "no such user"],
)
def test_what_can_be_no_path_is_refused(refuse, path, message):
    assert message in refuse(path)


def test_any_failure_of_the_network_is_the_adapters(monkeypatch):
    def download(repo, *, local_files_only=False, **_):
        raise LocalEntryNotFoundError("not here") if local_files_only else TypeError("of the HTTP client\nand more")

    monkeypatch.setattr(adapter_path, "snapshot_download", download)
    with pytest.raises(AdapterError, match=r"nor reachable on the hub: of the HTTP client$"):
        _resolve("owner/name")
