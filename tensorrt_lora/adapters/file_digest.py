"""Reading files whole, with one digest over all of them.

Owns the adapter's version: the digest of exactly the bytes that it was made from. Used by the checkpoint readers.
"""

import hashlib
import os
from pathlib import Path

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.load_pacer import GiveWay, go_on

_BYTES_AT_ONCE = 2**20  # hashed while they are still in the processor's cache


class FileDigest:
    """Reads the files of one directory and hashes their names, sizes and contents in the order of the calls.

    Calls `give_way` after each piece.
    """

    def __init__(self, directory: Path, problems: AdapterProblems, give_way: GiveWay = go_on) -> None:
        self._directory = directory
        self._problems = problems
        self._give_way = give_way
        self._digest = hashlib.sha256()  # processors have instructions for it: five times as fast as BLAKE2

    def read(self, name: str, *, max_bytes: int | None = None) -> torch.Tensor:
        """The whole file, [bytes] uint8, read and hashed in pieces, without holding the interpreter lock.

        Raises AdapterError for what is no file, too large, or changes meanwhile; OSError as the system does.
        """
        path = self._directory / name
        if not path.is_file():
            self._problems.fail(f"{name} is not there or not a file")
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if max_bytes is not None and size > max_bytes:
                self._problems.fail(f"{name} has {size} bytes, at most {max_bytes} are read; this is no such file")
            data = torch.empty(size, dtype=torch.uint8)
            view = data.numpy().data
            self._digest.update(f"{name}\0{size}\0".encode())
            done = 0
            while done < size and (count := file.readinto(view[done : done + _BYTES_AT_ONCE])):
                self._digest.update(view[done : done + count])
                done += count
                self._give_way()
        if done < size:
            self._problems.fail(f"{name} became shorter while it was read; try again when it is written")
        return data

    def hexdigest(self) -> str:
        """128 bits of it."""
        return self._digest.hexdigest()[:32]
