"""The content of a NeMo LoRA archive: a tar file with `model_weights.ckpt` and `model_config.yaml`.

Owns opening the archive safely: nothing is unpacked to disk, and of its pickle only tensors are read. Called by
`bind_nemo_checkpoint`. Knows no layers.
"""

import io
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
import yaml

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterProblems
from tensorrt_lora.adapters.file_digest import FileDigest
from tensorrt_lora.adapters.load_pacer import GiveWay, go_on
from tensorrt_lora.adapters.tensor_pickle import load_tensor_pickle

WEIGHTS_NAME = "model_weights.ckpt"
CONFIG_NAME = "model_config.yaml"
_MAX_CONFIG_BYTES = 2**20
_MAX_MEMBERS = 10_000
_MAX_EXPANSION = 100  # a compressed archive that claims more is no adapter


@dataclass(frozen=True, slots=True)
class NemoArchive:
    """What an archive held; `version` is the digest of its bytes."""

    config: dict[str, object]
    tensors: dict[str, torch.Tensor]
    version: str


def read_nemo_archive(path: Path, problems: AdapterProblems, give_way: GiveWay = go_on) -> NemoArchive:
    """Read the archive at `path`, or the only one in that directory.

    Raises AdapterError for what is missing, damaged, unsafe or more than tensors.
    """
    try:
        file = _find_archive(path, problems)
        digest = FileDigest(file.parent, problems, give_way)
        data = digest.read(file.name)
    except OSError as error:
        problems.fail(f"{error.filename or path} cannot be read: {error.strerror}")
    members = _read_members(data, problems)
    config = _parse_config(members[CONFIG_NAME], problems)
    weights = torch.frombuffer(bytearray(members[WEIGHTS_NAME]) or bytearray(1), dtype=torch.uint8)
    return NemoArchive(config, load_tensor_pickle(weights, WEIGHTS_NAME, problems), digest.hexdigest())


def _find_archive(path: Path, problems: AdapterProblems) -> Path:
    if path.is_file():
        return path
    found = sorted(path.glob("*.nemo")) if path.is_dir() else []
    if len(found) == 1:
        return found[0]
    if found:
        problems.fail(f"found several archives, {', '.join(file.name for file in found)}; give the path of one")
    what = "holds no .nemo archive" if path.is_dir() else "does not exist"
    problems.fail(f"the path {what}; for a PEFT adapter set lora_ckpt_source='hf'")


def _read_members(data: torch.Tensor, problems: AdapterProblems) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data.numpy().tobytes()), mode="r:*") as archive:
            for number, member in enumerate(archive):
                if number >= _MAX_MEMBERS:
                    problems.fail(f"the archive has more than {_MAX_MEMBERS} members; this is no adapter")
                _read_member(archive, member, data.numel() * _MAX_EXPANSION, members, problems)
    except AdapterError:
        raise
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        problems.fail(f"the archive is truncated or no tar file ({type(error).__name__}: {error}); copy it again")
    for name in (WEIGHTS_NAME, CONFIG_NAME):
        if name not in members:
            problems.add(f"the archive holds no {name}; give a LoRA archive of one rank, tensor parallel ones merged")
    problems.check()
    return members


def _read_member(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    max_bytes: int,
    members: dict[str, bytes],
    problems: AdapterProblems,
) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        problems.fail(f"the archive's member {member.name!r} leads out of it or is no plain file; do not trust it")
    if str(path) not in (WEIGHTS_NAME, CONFIG_NAME) or not member.isfile():
        return
    if str(path) in members:
        problems.fail(f"the archive holds {path} twice; save it again")
    if member.size > (max_bytes if str(path) == WEIGHTS_NAME else _MAX_CONFIG_BYTES):
        problems.fail(f"the archive's member {path} claims {member.size} bytes; this is no adapter")
    file = archive.extractfile(member)
    assert file is not None, "a plain file has content"
    members[str(path)] = file.read()


def _parse_config(text: bytes, problems: AdapterProblems) -> dict[str, object]:
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problems.fail(f"{CONFIG_NAME} is not valid YAML: {str(error).partition(chr(10))[0]}")
    except Exception as error:
        # Values that belie their tags, like `!!bool x`, make the library raise anything.
        problems.fail(f"{CONFIG_NAME} is not valid YAML ({type(error).__name__}); save the adapter again")
    if not isinstance(config, dict):
        problems.fail(f"{CONFIG_NAME} must hold a mapping, got {type(config).__name__}")
    return config
