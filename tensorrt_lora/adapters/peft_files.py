"""The files of a PEFT adapter directory.

Owns which files hold an adapter, reading them whole, and the digest of what was read. Called by
`read_peft_checkpoint`. Knows the containers (JSON, safetensors, pickle), not what their contents mean.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.file_digest import FileDigest
from tensorrt_lora.adapters.load_pacer import GiveWay, go_on
from tensorrt_lora.adapters.safetensors_buffer import view_safetensors
from tensorrt_lora.adapters.tensor_pickle import load_tensor_pickle

CONFIG_NAME = "adapter_config.json"
SAFETENSORS_NAME = "adapter_model.safetensors"
INDEX_NAME = "adapter_model.safetensors.index.json"
PICKLE_NAME = "adapter_model.bin"
_SHARD = re.compile(r"adapter_model-(\d{5})-of-(\d{5})\.safetensors")
_MAX_JSON_BYTES = 16 * 2**20
# What the files of other programs are called, for the message when there are none of PEFT's.
_FOREIGN_FILES = (
    ("adapters.safetensors", "MLX's format: convert it to PEFT's"),
    ("lora.safetensors", "mistral-finetune's format: convert it to PEFT's"),
    ("adapter_*.pt", "torchtune's format: export the adapter to PEFT's"),
    ("*.gguf", "llama.cpp's format: give the PEFT adapter that it was made from"),
    ("*.nemo", "NeMo's format: set lora_ckpt_source='nemo'"),
    ("model*.safetensors", "a whole model: give the directory of the adapter"),
    ("pytorch_model*.bin", "a whole model: give the directory of the adapter"),
    ("checkpoint-*", "a checkpoint of the training: give that directory"),
)


@dataclass(frozen=True, slots=True)
class PeftFiles:
    """What a directory held; `version` is the digest of exactly the bytes that the rest was made from."""

    config: dict[str, object]
    tensors: dict[str, torch.Tensor]
    version: str


class PeftFilesReader:
    """Reads one directory, each file at once, so that digest and tensors see the same state of it."""

    def __init__(self, directory: Path, problems: AdapterProblems, give_way: GiveWay = go_on) -> None:
        self._directory = directory
        self._problems = problems
        self._digest = FileDigest(directory, problems, give_way)
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
            hint = "; for a .nemo archive set lora_ckpt_source='nemo'" if self._directory.suffix == ".nemo" else ""
            self._problems.fail(f"the path {what}; give the directory that PEFT's save_pretrained wrote{hint}")
        if not (self._directory / CONFIG_NAME).exists() and (hint := self._foreign_hint()):
            self._problems.fail(f"{CONFIG_NAME} is not there{hint}")
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
        self._problems.fail(f"found neither {SAFETENSORS_NAME} nor {PICKLE_NAME}{self._foreign_hint()}")

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

    def _foreign_hint(self) -> str:
        for pattern, hint in _FOREIGN_FILES:
            found = sorted(self._directory.glob(pattern))
            if found:
                return f"; {found[0].name} is {hint}"
        return ""

    def _read_json(self, name: str) -> dict[str, object]:
        data = self._digest.read(name, max_bytes=_MAX_JSON_BYTES).numpy().tobytes()
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            self._problems.fail(f"{name} is not valid JSON: {error}")
        if not isinstance(content, dict):
            self._problems.fail(f"{name} must hold a JSON object, got {type(content).__name__}")
        return content

    def _read_safetensors(self, name: str) -> dict[str, torch.Tensor]:
        data = self._digest.read(name)
        try:
            return view_safetensors(data)
        except ValueError as error:
            self._problems.fail(f"{name} is truncated or not a safetensors file ({error}); copy or save it again")

    def _read_pickle(self, name: str) -> dict[str, torch.Tensor]:
        return load_tensor_pickle(self._digest.read(name), name, self._problems)
