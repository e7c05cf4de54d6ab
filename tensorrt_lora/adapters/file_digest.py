"""Reading files whole, with one digest over all of them.

Owns the adapter's version: the digest of exactly the bytes that it was made from. Used by the checkpoint readers.
"""

import hashlib
import os
from pathlib import Path

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems


class FileDigest:
    """Reads the files of one directory and hashes their names, sizes and contents in the order of the calls."""

    def __init__(self, directory: Path, problems: AdapterProblems) -> None:
        self._directory = directory
        self._problems = problems
        self._digest = hashlib.blake2b(digest_size=16)

    def read(self, name: str, *, max_bytes: int | None = None) -> torch.Tensor:
        """The whole file, [bytes] uint8, read and hashed without holding the interpreter lock.

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
            done = 0
            while done < len(view) and (count := file.readinto(view[done:])):
                done += count
        if done < len(view):
            self._problems.fail(f"{name} became shorter while it was read; try again when it is written")
        self._digest.update(f"{name}\0{len(view)}\0".encode())
        self._digest.update(view)
        return data

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
