"""An adapter on its way to the engine: plain, and with paths that hold in another working directory."""

from pathlib import Path

import pytest

from tensorrt_lora.llmapi.sent_adapter import sent_adapter
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests


class _Mine(LoRARequest):
    pass


def test_relative_paths_become_absolute_where_they_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapters" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    here = str(tmp_path / "adapters" / "a")
    for given, sent in [
        ("adapters/a", here),
        ("~/adapters/a", here),
        (here, here),
        ("owner/name", "owner/name"),
        ("adapters/none", "adapters/none"),
        ("x" * 5000, "x" * 5000),
        ("a\0b", "a\0b"),
        ("\ud800", "\ud800"),
    ]:
        assert sent_adapter(LoRARequest("a", 1, given)) == LoRARequest("a", 1, sent)
    combined = WeightedLoRARequests(((LoRARequest("a", 1, "adapters/a"), 2.0), (LoRARequest("b", 2, "owner/b"), -1.0)))
    parts = ((LoRARequest("a", 1, here), 2.0), (LoRARequest("b", 2, "owner/b"), -1.0))
    assert sent_adapter(combined) == WeightedLoRARequests(parts)


def test_subclasses_become_plain() -> None:
    [(part, _)] = getattr(sent_adapter(WeightedLoRARequests(((_Mine("a", 1, "x"), 1.0),))), "parts", ())
    for sent in (sent_adapter(_Mine("a", 1, "x")), part):
        assert type(sent) is LoRARequest and sent == LoRARequest("a", 1, "x")
    assert sent_adapter(None) is None
