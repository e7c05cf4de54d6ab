"""Equal to the safetensors library on good files, and refusing whatever the library refuses."""

import json
import random

import pytest
import safetensors
import torch
from safetensors.torch import load, save

from tensorrt_lora.adapters.safetensors_buffer import view_safetensors

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_TENSORS = {
    **{str(dtype): torch.randn(3, 5).to(dtype) for dtype in _DTYPES},
    **{str(dtype): torch.arange(3).to(dtype) for dtype in (torch.int64, torch.int8, torch.uint8, torch.bool)},
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0),
    "empty matrix": torch.empty(4, 0),
}


def _view(data: bytes) -> dict[str, torch.Tensor]:
    return view_safetensors(torch.tensor(list(data), dtype=torch.uint8))


def _pack(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape, name
        assert ours[name].contiguous().view(-1).view(torch.uint8).equal(tensor.view(-1).view(torch.uint8)), name


def test_every_dtype_and_shape_is_read_as_by_the_library():
    data = save(_TENSORS, {"format": "pt"})
    _assert_equal(_view(data), load(data))


def test_tensors_share_the_buffers_memory():
    buffer = torch.tensor(list(save({"a": torch.ones(4)})), dtype=torch.uint8)
    tensor = view_safetensors(buffer)["a"]
    assert tensor.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


def test_a_tensor_that_is_not_aligned_is_copied():
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for padding in range(4):
        text = json.dumps({"a": entry}).encode() + b" " * padding
        tensor = _view(_pack(text, torch.tensor([1.5, -2.0]).numpy().tobytes()))["a"]
        assert tensor.tolist() == [1.5, -2.0]


def _entry(shape: object = (2,), offsets: object = (0, 8), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


_DAMAGED = {
    "nothing": (b"", "no header"),
    "a short length": (b"\1\0\0", "no header"),
    "a header beyond the end": (_pack({})[:-1], "the header is longer than the file"),
    "a huge header": (b"\xff" * 20, "the header is longer than the file"),
    "no JSON": (_pack(b"{"), ""),
    "no text": (_pack(b"\xff\xfe"), ""),
    "no object": (_pack([1]), "the header is no JSON object"),
    "deep nesting": (_pack(b"[" * 100_000), "the header is nested too deeply"),
    "a name twice": (
        _pack(b'{"a":%s,"a":%s}' % ((json.dumps(_entry()).encode(),) * 2), bytes(8)),
        "the header names something twice",
    ),
    "an entry without a dtype": (_pack({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "is malformed"),
    "an unknown dtype": (_pack({"a": _entry(dtype="F99")}, bytes(8)), "dtype 'F99' of a is not known"),
    "a dtype that is a list": (_pack({"a": _entry(dtype=["F32"])}, bytes(8)), "is not known"),
    "a negative side": (_pack({"a": _entry([-2])}, bytes(8)), "shape or offsets of a are malformed"),
    "a huge side": (_pack({"a": _entry([0, 10**30], [0, 0])}), "shape or offsets of a are malformed"),
    "a boolean side": (_pack({"a": _entry([True, 2])}, bytes(8)), "shape or offsets of a are malformed"),
    "three offsets": (_pack({"a": _entry(offsets=[0, 8, 8])}, bytes(8)), "shape or offsets of a are malformed"),
    "a shape of another size": (_pack({"a": _entry([3])}, bytes(8)), "offsets of a do not fit its shape"),
    "bytes before": (_pack({"a": _entry(offsets=[8, 16])}, bytes(16)), "the tensors overlap or leave gaps"),
    "bytes after": (_pack({"a": _entry()}, bytes(9)), "the tensors end elsewhere than the file"),
    "missing bytes": (_pack({"a": _entry()}, bytes(7)), "the tensors end elsewhere than the file"),
    "shared bytes": (_pack({"a": _entry(), "b": _entry()}, bytes(8)), "the tensors overlap or leave gaps"),
}


@pytest.mark.parametrize("name", _DAMAGED)
def test_damage_is_named(name):
    data, reason = _DAMAGED[name]
    with pytest.raises(ValueError) as caught:
        _view(data)
    assert reason in str(caught.value)


def test_whatever_the_library_refuses_is_refused():
    draws = random.Random(0)
    data = save({name: tensor for name, tensor in _TENSORS.items() if tensor.dim() == 2})
    header = 8 + int.from_bytes(data[:8], "little")
    num_refused = 0
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(draws.randint(1, 3)):
            damaged[draws.randrange(header)] ^= 1 << draws.randrange(8)
        try:
            ours = _view(bytes(damaged))
        except ValueError:
            num_refused += 1
            continue
        try:
            _assert_equal(ours, load(bytes(damaged)))
        except safetensors.SafetensorError as error:
            pytest.fail(f"read although the library says: {error}")
    assert 300 < num_refused < 600
