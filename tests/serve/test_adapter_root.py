"""From a client's text to a directory of the root, and nowhere else."""

import os
from pathlib import Path

import pytest

from tensorrt_lora.serve.adapter_root import AdapterRoot
from tensorrt_lora.serve.api_error import ApiError


def adapter(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(b"")
    return directory


@pytest.fixture
def root(tmp_path: Path) -> AdapterRoot:
    adapter(tmp_path / "root" / "a")
    adapter(tmp_path / "root" / "team" / "b")
    adapter(tmp_path / "rootless")
    return AdapterRoot(str(tmp_path / "root"))


def status(root: AdapterRoot, path: str) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as caught:
        root.directory(path, param="lora_path")
    return caught.value.status, caught.value.code


def test_inside(root: AdapterRoot, tmp_path: Path) -> None:
    expected = tmp_path / "root" / "team" / "b"
    for path in ("team/b", "team/../team/b", "./team/b/", str(expected), "../root/team/b"):
        assert root.directory(path, param="lora_path") == expected
    assert root.name_of(expected) == "team/b"
    assert root.child("a") == tmp_path / "root" / "a"


def test_outside(root: AdapterRoot, tmp_path: Path) -> None:
    outside = (400, "path_outside_root")
    # The last two share the root's beginning as text.
    for path in ("..", "../..", "/", "/etc", "../rootless", str(tmp_path / "rootless")):
        assert status(root, path) == outside
    link = tmp_path / "root" / "link"
    link.symlink_to(tmp_path / "rootless")
    assert status(root, "link") == outside
    (tmp_path / "root" / "a" / "extra").symlink_to("/etc/passwd")
    assert status(root, "a") == outside


def test_links_inside_are_followed(root: AdapterRoot, tmp_path: Path) -> None:
    (tmp_path / "root" / "alias").symlink_to(tmp_path / "root" / "a")
    assert root.directory("alias", param="lora_path") == tmp_path / "root" / "a"
    circle = tmp_path / "root" / "circle"
    circle.symlink_to(circle)
    assert status(root, "circle")[0] in (400, 404)


def test_what_is_no_adapter(root: AdapterRoot) -> None:
    for path in ("team", "nothing", "a/adapter_config.json", ""):
        assert status(root, path) == (404, "adapter_not_found")
    assert status(root, "a\0") == (400, "invalid_path")
    assert status(root, "\ud800")[0] in (400, 404)


def test_pipes_and_pickles(root: AdapterRoot) -> None:
    os.mkfifo(root.path / "a" / "pipe")
    assert status(root, "a") == (400, "adapter_refused")
    (root.path / "a" / "pipe").unlink()
    (root.path / "a" / "adapter_model.bin").write_bytes(b"")
    assert root.directory("a", param="lora_path")  # never read beside safetensors
    (root.path / "a" / "adapter_model.safetensors").unlink()
    assert status(root, "a") == (400, "adapter_refused")


@pytest.mark.parametrize("name", ["", ".", "..", "team/b", "../rootless", "/etc", "a/", "A" * 200, "a\n", "-a"])
def test_names_that_are_no_child(root: AdapterRoot, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        root.child(name)
    assert caught.value.status == 404


def test_a_root_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(ValueError, match="lora_root"):
            AdapterRoot(str(path))
