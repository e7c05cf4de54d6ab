import io
import json
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterProblems
from tensorrt_lora.adapters.peft_files import PeftFiles, PeftFilesReader
from tests.support.tiny_adapters import config_fields, lora_pair, write_adapter

_TENSORS = {**lora_pair("q", 2, 4, 6, seed=1), **lora_pair("v", 2, 4, 6, seed=2)}
_CONFIG = config_fields(2, ["q", "v"])
_SAFETENSORS = "adapter_model.safetensors"
_INDEX = "adapter_model.safetensors.index.json"


@pytest.fixture
def directory(tmp_path):
    return write_adapter(tmp_path / "a1", _TENSORS, _CONFIG)


def _read(directory) -> PeftFiles:
    return PeftFilesReader(directory, AdapterProblems("a1", str(directory))).read()


def _refuse(directory) -> str:
    with pytest.raises(AdapterError) as caught:
        _read(directory)
    message = str(caught.value)
    assert message.startswith(f"adapter 'a1' ({directory}): ")
    return message


def _write_shards(directory, *, index: bool) -> None:
    (directory / _SAFETENSORS).unlink()
    names = [f"adapter_model-{i:05d}-of-00002.safetensors" for i in (1, 2)]
    keys = sorted(_TENSORS)
    halves = (keys[:2], keys[2:])
    for name, half in zip(names, halves, strict=True):
        save_file({key: _TENSORS[key] for key in half}, directory / name)
    if index:
        weight_map = {key: name for name, half in zip(names, halves, strict=True) for key in half}
        (directory / _INDEX).write_text(json.dumps({"weight_map": weight_map}))


def _assert_whole(files: PeftFiles) -> None:
    assert files.config == _CONFIG
    assert files.tensors.keys() == _TENSORS.keys()
    assert all(torch.equal(files.tensors[key], tensor) for key, tensor in _TENSORS.items())


def test_a_safetensors_file_is_read(directory):
    _assert_whole(_read(directory))


@pytest.mark.parametrize("index", [True, False])
def test_shards_are_read_with_and_without_an_index(directory, index):
    _write_shards(directory, index=index)
    _assert_whole(_read(directory))


def test_a_pickle_is_read_if_it_is_all_there_is(directory):
    torch.save(_TENSORS, directory / "adapter_model.bin")
    (directory / _SAFETENSORS).unlink()
    _assert_whole(_read(directory))


def test_safetensors_win_over_a_pickle(directory):
    torch.save({key: tensor * 5 for key, tensor in _TENSORS.items()}, directory / "adapter_model.bin")
    _assert_whole(_read(directory))


def test_the_version_follows_the_content_alone(directory, tmp_path):
    version = _read(directory).version
    assert _read(write_adapter(tmp_path / "copy", _TENSORS, _CONFIG)).version == version
    changed = {key: tensor.clone() for key, tensor in _TENSORS.items()}
    next(iter(changed.values()))[0, 0] += 1
    assert _read(write_adapter(tmp_path / "weights", changed, _CONFIG)).version != version
    assert _read(write_adapter(tmp_path / "config", _TENSORS, {**_CONFIG, "lora_alpha": 5})).version != version


def test_a_missing_directory(tmp_path):
    assert "the path does not exist; give the directory" in _refuse(tmp_path / "nothing")


def test_a_file_instead_of_a_directory(directory):
    assert "the path is not a directory" in _refuse(directory / _SAFETENSORS)


def test_a_path_that_the_system_refuses(tmp_path):
    assert "cannot be read: File name too long" in _refuse(tmp_path / ("x" * 5000))


def test_a_missing_config(directory):
    (directory / "adapter_config.json").unlink()
    assert "adapter_config.json is not there or not a file" in _refuse(directory)


@pytest.mark.parametrize("text", ["{", "", "\xff", '{"r": 1,}', "[" * 100_000])
def test_a_config_that_is_no_json(directory, text):
    (directory / "adapter_config.json").write_bytes(text.encode("latin-1"))
    assert "adapter_config.json is not valid JSON" in _refuse(directory)


def test_a_config_that_is_no_object(directory):
    (directory / "adapter_config.json").write_text("[1]")
    assert "adapter_config.json must hold a JSON object, got list" in _refuse(directory)


def test_no_weights(directory):
    (directory / _SAFETENSORS).unlink()
    assert "found neither adapter_model.safetensors nor adapter_model.bin" in _refuse(directory)


def test_an_mlx_adapter_is_named(directory):
    (directory / _SAFETENSORS).rename(directory / "adapters.safetensors")
    assert "adapters.safetensors is MLX's format" in _refuse(directory)


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_truncated_safetensors_file(directory, keep):
    data = (directory / _SAFETENSORS).read_bytes()
    (directory / _SAFETENSORS).write_bytes(data[:keep])
    assert "adapter_model.safetensors is truncated or not a safetensors file (" in _refuse(directory)


def test_a_pickle_under_the_name_of_a_safetensors_file(directory):
    torch.save(_TENSORS, directory / _SAFETENSORS)
    assert "is truncated or not a safetensors file" in _refuse(directory)


def test_an_unknown_dtype(directory):
    data = (directory / _SAFETENSORS).read_bytes()
    (directory / _SAFETENSORS).write_bytes(data.replace(b'"F32"', b'"F99"'))
    assert "is truncated or not a safetensors file" in _refuse(directory)


def test_an_empty_weight_file(directory):
    save_file({}, directory / _SAFETENSORS)
    assert "the weight file holds 0 tensors" in _refuse(directory)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(directory):
    (directory / _SAFETENSORS).chmod(0)
    assert f"{_SAFETENSORS} cannot be read: Permission denied" in _refuse(directory)


class _Code:
    def __reduce__(self):
        return (print, ("this must never run",))


@pytest.mark.parametrize("spoil", ["code", "truncated", "no zip"])
def test_a_damaged_pickle_or_one_with_code(directory, spoil, capsys):
    buffer = io.BytesIO()
    torch.save(_TENSORS, buffer)
    data = {
        "code": pickle.dumps({"a": _Code()}),
        "truncated": buffer.getvalue()[:-200],
        "no zip": b"hello",
    }[spoil]
    (directory / _SAFETENSORS).unlink()
    (directory / "adapter_model.bin").write_bytes(data)
    assert "adapter_model.bin is truncated or holds more than tensors" in _refuse(directory)
    assert capsys.readouterr().out == ""


def test_a_pickle_of_something_else(directory):
    (directory / _SAFETENSORS).unlink()
    torch.save([1, 2], directory / "adapter_model.bin")
    assert "adapter_model.bin must hold a dict of tensors, got list" in _refuse(directory)
    torch.save({"a": 1, "b": torch.eye(2).to_sparse(), 3: torch.eye(2)}, directory / "adapter_model.bin")
    message = _refuse(directory)
    assert "3 problems" in message
    assert "entry 'a' is int, not a dense tensor" in message
    assert "entry 'b' is a sparse tensor, not a dense tensor" in message


@pytest.mark.filterwarnings("ignore")  # of torch, about prototypes
@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.empty(2, 2, device="meta"), "a tensor without values (on the meta device)"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "a quantised tensor"),
    ],
    ids=["meta", "nested", "quantised"],
)
def test_a_pickle_of_a_tensor_that_is_not_dense(directory, tensor, kind):
    (directory / _SAFETENSORS).unlink()
    torch.save({"a": tensor}, directory / "adapter_model.bin")
    assert f"entry 'a' is {kind}, not a dense tensor; save LoRA tensors only" in _refuse(directory)


def test_a_trained_parameter_in_a_pickle_is_its_values(directory):
    (directory / _SAFETENSORS).unlink()
    torch.save({"a": torch.nn.Parameter(torch.ones(2))}, directory / "adapter_model.bin")
    assert not _read(directory).tensors["a"].requires_grad


def test_an_index_without_a_map(directory):
    _write_shards(directory, index=True)
    (directory / _INDEX).write_text("{}")
    assert f"{_INDEX}: weight_map is missing or empty" in _refuse(directory)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "..", "sub\\x.safetensors"])
def test_an_index_that_leads_out_of_the_directory(directory, name):
    _write_shards(directory, index=True)
    (directory / _INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    assert "are no plain file names; put all shards beside the index" in _refuse(directory)


def test_a_missing_shard(directory):
    _write_shards(directory, index=True)
    (directory / "adapter_model-00002-of-00002.safetensors").unlink()
    assert "adapter_model-00002-of-00002.safetensors is not there or not a file" in _refuse(directory)
    (directory / _INDEX).unlink()
    assert "shards do not add up: missing ['adapter_model-00002-of-00002.safetensors']" in _refuse(directory)


def test_shards_of_two_saves(directory):
    _write_shards(directory, index=False)
    save_file(_TENSORS, directory / "adapter_model-00003-of-00003.safetensors")
    assert "unexpected ['adapter_model-00003-of-00003.safetensors']" in _refuse(directory)


def test_a_tensor_of_the_index_that_no_shard_has(directory):
    _write_shards(directory, index=True)
    content = json.loads((directory / _INDEX).read_text())
    content["weight_map"]["lost"] = "adapter_model-00001-of-00002.safetensors"
    (directory / _INDEX).write_text(json.dumps(content))
    assert f"tensor lost of {_INDEX} is missing; copy all shards" in _refuse(directory)


def test_a_tensor_in_two_shards(directory):
    _write_shards(directory, index=False)
    save_file(_TENSORS, directory / "adapter_model-00002-of-00002.safetensors")
    message = _refuse(directory)
    assert "2 problems" in message
    assert "is in another file too; keep one of them" in message
