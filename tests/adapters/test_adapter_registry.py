import pytest

from tensorrt_lora.adapters import adapter_registry
from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_registry import AdapterRegistry
from tensorrt_lora.lora_request import LoRARequest


def test_ids_may_have_gaps_and_start_at_zero():
    registry = AdapterRegistry()
    for adapter_id in (0, 7, 2**31, 2**63):
        registry.register(LoRARequest(f"a{adapter_id}", adapter_id, f"/a{adapter_id}"))
    registry.register(LoRARequest("a0", 0, "/a0"))


@pytest.mark.parametrize("request_", [LoRARequest("a2", 0, "/a1"), LoRARequest("a1", 0, "/a2")])
def test_an_id_never_means_two_adapters(request_):
    registry = AdapterRegistry()
    registry.register(LoRARequest("a1", 0, "/a1"))
    with pytest.raises(ValueError, match=r"lora_int_id 0 already stands for adapter 'a1' \(/a1\)") as caught:
        registry.register(request_)
    assert f"cannot also stand for {request_.lora_name!r} ({request_.lora_path})" in str(caught.value)
    assert "give each adapter an id of its own" in str(caught.value)


def test_the_same_directory_may_be_spelled_differently(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    registry = AdapterRegistry()
    registry.register(LoRARequest("a1", 1, "a1"))
    registry.register(LoRARequest("a1", 1, f"{tmp_path}/./a1/"))


def test_one_directory_may_have_several_ids():
    registry = AdapterRegistry()
    registry.register(LoRARequest("a1", 1, "/a1"))
    registry.register(LoRARequest("a2", 2, "/a1"))


def test_a_forgotten_id_is_free():
    registry = AdapterRegistry()
    registry.register(LoRARequest("a1", 1, "/a1"))
    registry.forget(1)
    registry.forget(1)
    registry.register(LoRARequest("a2", 1, "/a2"))


def test_several_are_registered_together_or_not_at_all():
    registry = AdapterRegistry()
    registry.register(LoRARequest("a1", 1, "/a1"))
    with pytest.raises(ValueError, match="lora_int_id 1 already stands for adapter 'a1'"):
        registry.register(LoRARequest("a2", 2, "/a2"), LoRARequest("other", 1, "/a1"))
    registry.register(LoRARequest("a3", 2, "/a3"))
    with pytest.raises(ValueError, match="lora_int_id 4 already stands for adapter 'a4'"):
        registry.register(LoRARequest("a4", 4, "/a4"), LoRARequest("a5", 4, "/a5"))
    registry.register(LoRARequest("a4", 4, "/a4"), LoRARequest("a4", 4, "/a4"))


def test_a_relative_path_without_a_current_directory(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    registry = AdapterRegistry()
    (tmp_path / "gone").rmdir()
    registry.register(LoRARequest("a1", 1, "/a1"))
    with pytest.raises(ValueError, match=r"lora_path of adapter 'a2' is relative \(a2\).* give an absolute path"):
        registry.register(LoRARequest("a2", 2, "a2"))


def test_an_unloaded_id_is_refused_until_it_is_revived():
    registry = AdapterRegistry()
    registry.register(LoRARequest("a1", 1, "/a1"))
    assert registry.unload(1).name == "a1"
    with pytest.raises(AdapterError, match="lora_int_id 1 was unloaded; load it again") as caught:
        registry.register(LoRARequest("a1", 1, "/a1"))
    assert caught.value.kind == "unloaded"
    with pytest.raises(ValueError, match="lora_int_id 1 stands for no adapter"):
        registry.unload(1)
    registry.register(LoRARequest("other", 1, "/other"), revive=True)
    registry.register(LoRARequest("other", 1, "/other"))


def test_only_so_many_unloaded_ids_are_remembered(monkeypatch):
    monkeypatch.setattr(adapter_registry, "_MAX_UNLOADED", 2)
    registry = AdapterRegistry()
    for number in range(3):
        registry.register(LoRARequest("a", number, "/a"))
        registry.unload(number)
    registry.register(LoRARequest("a", 0, "/a"))
    for number in (1, 2):
        with pytest.raises(AdapterError, match="was unloaded"):
            registry.register(LoRARequest("a", number, "/a"))
