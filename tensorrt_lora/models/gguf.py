"""From what a user calls a model to a checkpoint directory: a directory, a GGUF file, or a hub id.

GGUF files are converted once, through transformers, into a directory of safetensors, config and tokenizer.
The cache is `$TENSORRT_LORA_CACHE/gguf/<digest of the file>`, by default below `~/.cache/tensorrt_lora`.
Called by the engine and the front, before anything reads a config. Knows nothing of model classes.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import struct
import tempfile
from pathlib import Path

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors.torch import save_file

from tensorrt_lora.utils.logger import logger

_CACHE_VARIABLE = "TENSORRT_LORA_CACHE"
# Part of the cache key: raise it when the layout of a converted directory changes.
_CONVERSION_FORMAT = 1
_CONFIG_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
_WEIGHT_FILES = ["model*.safetensors"]
# What transformers' GGUF reader raises for damaged files, and for models that it cannot build or fill.
_PARSER_ERRORS = (ValueError, RuntimeError, LookupError, OverflowError, struct.error)


def resolve_checkpoint(model: str, *, with_weights: bool = True) -> Path:
    """The directory with the config, the tokenizer and the weights of `model`.

    Args:
        model: a checkpoint directory (returned as it is), a `.gguf` file or a directory whose only weights
            are one such file (converted on first use), or a hub id (from the hub's cache, else downloaded).
        with_weights: whether a hub model's weights are needed too.

    Raises:
        ValueError: `model` is none of these, or the conversion is not possible.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        gguf_file = _only_gguf_file(path)
        return path if gguf_file is None else _convert_once(gguf_file)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(
                f"model {model!r} is a file but not a .gguf file; give a GGUF file or a checkpoint directory"
            )
        return _convert_once(path)
    return _hub_snapshot(model, with_weights)


def _only_gguf_file(directory: Path) -> Path | None:
    """The one GGUF file of a directory without safetensors, if it is such a directory."""
    files = sorted(directory.glob("*.gguf"))
    if not files or any(directory.glob("*.safetensors")):
        return None
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ValueError(f"{directory} holds several GGUF files ({names}); give the path of one of them")
    return files[0]


def _hub_snapshot(model: str, with_weights: bool) -> Path:
    patterns = _CONFIG_FILES + (_WEIGHT_FILES if with_weights else [])
    try:
        snapshot = Path(snapshot_download(model, allow_patterns=patterns, local_files_only=True))
        # The hub cache may hold a part of a model only, such as its config or tokenizer.
        if (snapshot / "config.json").exists() and (not with_weights or any(snapshot.glob("model*.safetensors"))):
            return snapshot
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        raise ValueError(f"model {model!r} is neither an existing path nor a valid hub id") from error
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        raise ValueError(
            f"model {model!r} is neither an existing path, nor in the local hub cache, "
            f"nor reachable on the hub: {error}"
        ) from error


def _convert_once(gguf_file: Path) -> Path:
    """The converted directory of a GGUF file, made if it is not in the cache."""
    cache = Path(os.environ.get(_CACHE_VARIABLE) or "~/.cache/tensorrt_lora").expanduser()
    root = cache / "gguf"
    converted = root / _digest(gguf_file)
    if converted.is_dir():
        return converted
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"reading {gguf_file} needs the package 'gguf': pip install gguf")
    logger.info("converting %s into %s; this happens once", gguf_file, converted)
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=root, prefix=".converting-"))
    try:
        _convert(gguf_file, scratch)
        # A scratch directory is its maker's alone; the cache may be shared.
        scratch.chmod(0o755)
        # A rename is atomic: nobody ever sees a half-written directory under the final name.
        scratch.rename(converted)
    except OSError:
        if not converted.is_dir():  # else another process was faster, with the same content
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return converted


def _digest(file: Path) -> str:
    digest = hashlib.sha256(f"format {_CONVERSION_FORMAT}".encode())
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:32]


def _convert(gguf_file: Path, target: Path) -> None:
    """Write the weights, config and tokenizer of a GGUF file into the directory `target`."""
    folder, name = gguf_file.parent, gguf_file.name
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    except _PARSER_ERRORS as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{gguf_file} cannot be converted, it may be damaged: {reason}") from error

    # transformers calls the model quantised and refuses to save it, though its weights are plain tensors.
    parameters = dict(model.named_parameters())
    dtype = _exact_dtype(list(parameters.values()))
    tensors = {name: parameter.detach().to(dtype).contiguous() for name, parameter in parameters.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})

    config = model.config.to_diff_dict()
    for leftover in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(leftover, None)
    config["architectures"] = [type(model).__name__]
    config["dtype"] = str(dtype).removeprefix("torch.")
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if model.generation_config is not None:
        model.generation_config.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _exact_dtype(parameters: list[torch.nn.Parameter]) -> torch.dtype:
    """The narrowest dtype that holds every value exactly, so that a conversion never rounds.

    Files in bfloat16 or float16 keep their dtype; quantised blocks (an integer times a float16 scale) need
    float32.
    """
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(parameter.to(dtype).float(), parameter) for parameter in parameters):
            return dtype
    return torch.float32
