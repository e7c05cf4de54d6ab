"""The facts in a header."""

import platform
from types import SimpleNamespace

import pytest
import torch

from tensorrt_lora.bench import run_environment


def test_hardware_and_versions() -> None:
    assert {"device", "machine"} <= set(run_environment.hardware())
    versions = run_environment.versions()
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("status", "expected"), [("", "abc"), (" M a.py\n", "abc with local changes")], ids=["clean", "changed"]
)
def test_commit(monkeypatch: pytest.MonkeyPatch, status: str, expected: str) -> None:
    def run(command: list[str], **_: object) -> SimpleNamespace:
        return SimpleNamespace(returncode=0, stdout="abc\n" if "rev-parse" in command else status)

    monkeypatch.setattr(run_environment.subprocess, "run", run)
    assert run_environment.commit() == expected


def test_no_commit_without_a_checkout_or_git(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=128, stdout="")
    monkeypatch.setattr(run_environment.subprocess, "run", lambda *_, **__: failed)
    assert run_environment.commit() is None

    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(run_environment.subprocess, "run", no_git)
    assert run_environment.commit() is None
