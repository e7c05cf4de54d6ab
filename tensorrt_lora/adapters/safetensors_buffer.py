"""Tensors out of a safetensors file that is in memory already.

Owns the container's header and its checks (format: github.com/huggingface/safetensors). Called by `PeftFilesReader`,
which needs the file's bytes for the digest too. The library's own reader copies every tensor while it holds the
interpreter lock, 25 to 90 ms for 128 MB, in which the engine's loop would stand still; these are views.
"""

import json
from math import prod

import torch

_LENGTH_BYTES = 8  # little endian, the length of the JSON header
_MAX_HEADER = 100_000_000  # the format's own limit
_MAX_SIDE = 2**40
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def view_safetensors(buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of a file's content, as views of it where their alignment allows.

    Args:
        buffer: the whole file, [bytes] uint8.

    Raises:
        ValueError: the content is damaged; what the header says does not account for every byte exactly once.
    """
    if buffer.numel() < _LENGTH_BYTES:
        raise ValueError("no header")
    start = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES].numpy().tobytes(), "little")
    if start > min(buffer.numel(), _MAX_HEADER):
        raise ValueError("the header is longer than the file or than 100 MB")
    header = _read_header(buffer[_LENGTH_BYTES:start].numpy().tobytes())
    header.pop("__metadata__", None)
    entries = {name: _Entry(name, fields) for name, fields in header.items()}
    position = 0
    for begin, end in sorted((entry.begin, entry.end) for entry in entries.values()):
        if begin != position:
            raise ValueError("the tensors overlap or leave gaps")
        position = end
    if position != buffer.numel() - start:
        raise ValueError("the tensors end elsewhere than the file")
    return {name: entry.view(buffer[start:]) for name, entry in entries.items()}


def _read_header(text: bytes) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise ValueError("the header names something twice")
        return fields

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    return header


class _Entry:
    """One tensor of the header: dtype, shape and where its bytes are."""

    def __init__(self, name: str, fields: object) -> None:
        if not isinstance(fields, dict) or fields.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"the header's entry for {name} is malformed")
        shape, offsets = fields["shape"], fields["data_offsets"]
        if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
            raise ValueError(f"shape or offsets of {name} are malformed")
        dtype = fields["dtype"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise ValueError(f"dtype {dtype!r} of {name} is not known")
        self.dtype = _DTYPES[dtype]
        self.shape: list[int] = shape
        self.begin, self.end = offsets
        if self.end - self.begin != prod(self.shape) * self.dtype.itemsize:
            raise ValueError(f"offsets of {name} do not fit its shape")

    def view(self, data: torch.Tensor) -> torch.Tensor:
        values = data[self.begin : self.end]
        if values.storage_offset() % self.dtype.itemsize:
            values = values.clone()
        return values.view(self.dtype).view(self.shape)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < _MAX_SIDE for size in value)
