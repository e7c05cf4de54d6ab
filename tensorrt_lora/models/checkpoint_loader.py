"""Weights into a model, streamed from a Hugging Face checkpoint.

Called by the engine after `create_model`. Every tensor goes straight from its file to its place in the
(possibly fused) parameter on the device, so the host never holds a second copy of the model. Names, shapes
and dtypes are compared for all files before the first byte is copied.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from torch import nn

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.models.checkpoint_targets import checkpoint_targets
from tensorrt_lora.modules.checkpoint_target import CheckpointTarget
from tensorrt_lora.utils.logger import logger

_BYTES_OF_DTYPE = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}
# Derived from the config, but stored by some checkpoints.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "self_attn.bias", "self_attn.masked_bias")
# Of a quantised KV cache; ours is not quantised.
_KV_CACHE_SCALE_SUFFIXES = (".k_scale", ".v_scale", ".kv_scale")
# Formats differ in what they call the same scales.
_SUFFIX_SYNONYMS = {".weight_scale_inv": ".weight_scale", ".activation_scale": ".input_scale"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's entry in the header of a safetensors file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * _BYTES_OF_DTYPE[self.dtype]

    def describe(self) -> str:
        return f"tensor {self.name} in {self.file}"


def load_weights(model: nn.Module, config: ModelConfig, progress: bool = False) -> None:
    """Fill `model` from the safetensors files in `config.model_dir`, cast to the model's dtype.

    Args:
        model: as `create_model` returns it.
        config: the one the model was made from.
        progress: show a progress bar on the terminal.

    Raises:
        ValueError: no checkpoint, a damaged file, tensors missing or unexpected (all are named), or a tensor
            of the wrong shape or dtype.
    """
    assert config.model_dir is not None, "a config without a directory has no weights to load"
    targets = checkpoint_targets(model)
    stored = _read_headers(find_checkpoint_files(config.model_dir))
    wanted = _match(targets, stored, config)

    names_by_file: dict[Path, list[str]] = {}
    for name in wanted:
        names_by_file.setdefault(stored[name].file, []).append(name)
    total = sum(stored[name].nbytes for name in wanted)
    with _progress_bar(enabled=progress) as bar, torch.inference_mode():
        task = bar.add_task("Loading weights", total=total)
        for file, names in names_by_file.items():
            with _open(file) as tensors:
                for name in names:
                    targets[name].load(tensors.get_tensor(stored[name].name))
                    bar.advance(task, stored[name].nbytes)


def find_checkpoint_files(model_dir: Path) -> list[Path]:
    """The safetensors files of a checkpoint directory: the shards of its index, or its single file.

    Raises:
        ValueError: there is none, or a shard of the index is missing.
    """
    index = model_dir / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [shard for shard in shards if not (model_dir / shard).is_file()]
        if missing:
            raise ValueError(f"{index} names files that do not exist: {', '.join(missing)}")
        return [model_dir / shard for shard in shards]
    single = model_dir / "model.safetensors"
    if single.is_file():
        return [single]
    raise ValueError(
        f"{model_dir} has no model.safetensors and no model.safetensors.index.json; "
        "only safetensors and GGUF checkpoints can be loaded"
    )


def _read_headers(files: list[Path]) -> dict[str, StoredTensor]:
    """What the files hold, by the names that `checkpoint_targets` has for it."""
    stored: dict[str, StoredTensor] = {}
    for file in files:
        with _open(file) as tensors:
            for name in tensors.offset_keys():
                header = tensors.get_slice(name)
                tensor = StoredTensor(file, name, str(header.get_dtype()), tuple(header.get_shape()))
                stored[_without_synonym(name)] = tensor
    return stored


def _without_synonym(name: str) -> str:
    for synonym, suffix in _SUFFIX_SYNONYMS.items():
        if name.endswith(synonym):
            return name.removesuffix(synonym) + suffix
    return name


@contextmanager
def _open(file: Path) -> Iterator[safe_open]:
    try:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or incomplete: {error}") from error


def _match(targets: dict[str, CheckpointTarget], stored: dict[str, StoredTensor], config: ModelConfig) -> list[str]:
    """The names to load, in file order, once names, shapes and dtypes agree."""
    missing = sorted(targets.keys() - stored.keys())
    unexpected = sorted(
        tensor.name
        for name, tensor in stored.items()
        if name not in targets and not _is_redundant(name, tensor, config)
    )
    if missing or unexpected:
        problems = [
            f"{kind} {len(names)}: {', '.join(names)}"
            for kind, names in (("missing", missing), ("unexpected", unexpected))
            if names
        ]
        raise ValueError(
            f"the tensors in {config.model_dir} are not those of {config.architecture}; {'; '.join(problems)}"
        )

    names = [name for name in stored if name in targets]
    for name in names:
        tensor, target = stored[name], targets[name]
        if tensor.shape not in target.shapes:
            raise ValueError(f"{tensor.describe()} has shape {tensor.shape}, the model needs {target.shapes[0]}")
        if tensor.dtype not in target.dtypes:
            raise ValueError(
                f"{tensor.describe()} has dtype {tensor.dtype}; only {', '.join(target.dtypes)} can be loaded"
            )
    return names


def _is_redundant(name: str, tensor: StoredTensor, config: ModelConfig) -> bool:
    """Whether a stored tensor without a target follows from the config or from another tensor."""
    if name.endswith(_IGNORED_SUFFIXES):
        logger.debug("ignoring %s: it is computed from the config", name)
        return True
    if config.quantization is not None and name.endswith(_KV_CACHE_SCALE_SUFFIXES):
        logger.debug("ignoring %s: the KV cache is not quantised", name)
        return True
    tied_head = name == "lm_head.weight" and config.tie_word_embeddings
    if tied_head and tensor.shape == (config.vocab_size, config.hidden_size):
        logger.info("ignoring %s: the model is tied, its head is the embedding", name)
        return True
    return False


@contextmanager
def _progress_bar(*, enabled: bool) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not enabled) as bar:
        yield bar
