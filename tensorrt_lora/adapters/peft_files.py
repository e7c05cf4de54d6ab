"""The files of a PEFT adapter directory.

Owns which files hold an adapter, reading them whole, and the digest of what was read. Called by
`read_peft_checkpoint`. Knows the containers (JSON, safetensors, pickle), not what their contents mean.
"""

import hashlib
import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.safetensors_buffer import view_safetensors

CONFIG_NAME = "adapter_config.json"
SAFETENSORS_NAME = "adapter_model.safetensors"
INDEX_NAME = "adapter_model.safetensors.index.json"
PICKLE_NAME = "adapter_model.bin"
_SHARD = re.compile(r"adapter_model-(\d{5})-of-(\d{5})\.safetensors")
_MLX_NAME = "adapters.safetensors"


@dataclass(frozen=True, slots=True)
class PeftFiles:
    """What a directory held; `version` is the digest of exactly the bytes that the rest was made from."""

    config: dict[str, object]
    tensors: dict[str, torch.Tensor]
    version: str


class PeftFilesReader:
    """Reads one directory, each file at once, so that digest and tensors see the same state of it."""

    def __init__(self, directory: Path, problems: AdapterProblems) -> None:
        self._directory = directory
        self._problems = problems
        self._digest = hashlib.blake2b(digest_size=16)
        self._indexed: dict[str, str] = {}  # file by tensor, where there is an index

    def read(self) -> PeftFiles:
        """The directory's content. Raises AdapterError naming what is missing, damaged or unreadable."""
        try:
            return self._read()
        except OSError as error:
            self._problems.fail(f"{error.filename or self._directory} cannot be read: {error.strerror}")

    def _read(self) -> PeftFiles:
        if not self._directory.is_dir():
            what = "is not a directory" if self._directory.exists() else "does not exist"
            self._problems.fail(f"the path {what}; give the directory that PEFT's save_pretrained wrote")
        config = self._read_json(CONFIG_NAME)
        tensors: dict[str, torch.Tensor] = {}
        for name in self._weight_files():
            shard = self._read_pickle(name) if name == PICKLE_NAME else self._read_safetensors(name)
            for key in sorted(tensors.keys() & shard.keys()):
                self._problems.add(f"{name}: tensor {key} is in another file too; keep one of them")
            tensors.update(shard)
        for key in sorted(self._indexed.keys() - tensors.keys()):
            self._problems.add(f"{self._indexed[key]}: tensor {key} of {INDEX_NAME} is missing; copy all shards")
        self._problems.check()
        if not tensors:
            self._problems.fail(
                "the weight file holds 0 tensors; if it was saved from a sharded model (ZeRO-3, FSDP), "
                "gather the weights before saving"
            )
        return PeftFiles(config, tensors, self._digest.hexdigest())

    def _weight_files(self) -> list[str]:
        """One safetensors file before shards before a pickle, as in PEFT."""
        if (self._directory / SAFETENSORS_NAME).exists():
            return [SAFETENSORS_NAME]
        if (self._directory / INDEX_NAME).exists():
            return self._indexed_shards()
        shards = sorted(entry.name for entry in self._directory.iterdir() if _SHARD.fullmatch(entry.name))
        if shards:
            return self._numbered_shards(shards)
        if (self._directory / PICKLE_NAME).exists():
            return [PICKLE_NAME]
        hint = ""
        if (self._directory / _MLX_NAME).exists():
            hint = f"; {_MLX_NAME} is MLX's format: convert it to PEFT's"
        self._problems.fail(f"found neither {SAFETENSORS_NAME} nor {PICKLE_NAME}{hint}")

    def _indexed_shards(self) -> list[str]:
        weight_map = self._read_json(INDEX_NAME).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            self._problems.fail(f"{INDEX_NAME}: weight_map is missing or empty; save the adapter again")
        self._indexed = {key: str(name) for key, name in weight_map.items()}
        names = sorted(set(self._indexed.values()))
        # A name with a folder in it could lead out of the adapter's directory.
        outside = [name for name in names if name in ("", ".", "..") or "/" in name or "\\" in name]
        if outside:
            self._problems.fail(f"{INDEX_NAME}: {outside} are no plain file names; put all shards beside the index")
        return names

    def _numbered_shards(self, names: list[str]) -> list[str]:
        total = int(names[0].rpartition("-of-")[2].partition(".")[0])
        wanted = [f"adapter_model-{i:05d}-of-{total:05d}.safetensors" for i in range(1, total + 1)]
        if names != wanted:
            missing, extra = sorted(set(wanted) - set(names)), sorted(set(names) - set(wanted))
            self._problems.fail(f"shards do not add up: missing {missing}, unexpected {extra}; copy all of one save")
        return names

    def _read_bytes(self, name: str) -> torch.Tensor:
        """The whole file, [bytes] uint8, read and hashed without holding the interpreter lock."""
        path = self._directory / name
        if not path.is_file():
            self._problems.fail(f"{name} is not there or not a file")
        with path.open("rb", buffering=0) as file:
            data = torch.empty(os.fstat(file.fileno()).st_size, dtype=torch.uint8)
            view = data.numpy().data
            done = 0
            while done < len(view) and (count := file.readinto(view[done:])):
                done += count
        if done < len(view):
            self._problems.fail(f"{name} became shorter while it was read; try again when it is written")
        self._digest.update(f"{name}\0{len(view)}\0".encode())
        self._digest.update(view)
        return data

    def _read_json(self, name: str) -> dict[str, object]:
        data = self._read_bytes(name).numpy().tobytes()
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            self._problems.fail(f"{name} is not valid JSON: {error}")
        if not isinstance(content, dict):
            self._problems.fail(f"{name} must hold a JSON object, got {type(content).__name__}")
        return content

    def _read_safetensors(self, name: str) -> dict[str, torch.Tensor]:
        data = self._read_bytes(name)
        try:
            return view_safetensors(data)
        except ValueError as error:
            self._problems.fail(f"{name} is truncated or not a safetensors file ({error}); copy or save it again")

    def _read_pickle(self, name: str) -> dict[str, torch.Tensor]:
        data = self._read_bytes(name).numpy().tobytes()
        try:
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:
            # A damaged pickle can raise anything, and all of it means the same.
            reason = str(error).strip().partition("\n")[0]
            self._problems.fail(
                f"{name} is truncated or holds more than tensors ({type(error).__name__}: {reason}); "
                f"save the adapter as {SAFETENSORS_NAME}"
            )
        if not isinstance(content, dict):
            self._problems.fail(f"{name} must hold a dict of tensors, got {type(content).__name__}")
        for key, value in content.items():
            is_dense = isinstance(value, torch.Tensor) and value.layout == torch.strided
            if not (isinstance(key, str) and is_dense):
                kind = type(value).__name__
                self._problems.add(f"{name}: entry {key!r} is {kind}, not a dense tensor; save LoRA tensors only")
        self._problems.check()
        return content
