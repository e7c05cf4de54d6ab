"""Adapter directories with something wrong in them, a different one for every seed.

A case is a good adapter's files after one mutation: of bytes (cut, flipped, removed, repeated), of the configuration's
values, or of tensors (renamed, swapped, reshaped). The caller reads it and judges; `Fuzzed.must_refuse` says where a
mutation cannot be harmless.
"""

import io
import json
import random
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load, save

from tests.support.tiny_adapters import PREFIX, config_fields, find_sites, random_tensors
from tests.support.tiny_models import make_tiny_model

Files = dict[str, bytes]
CONFIG, WEIGHTS, INDEX = "adapter_config.json", "adapter_model.safetensors", "adapter_model.safetensors.index.json"
_SHARDS = ("adapter_model-00001-of-00002.safetensors", "adapter_model-00002-of-00002.safetensors")
_LEAVES = ("q_proj", "down_proj")  # of different shapes


@dataclass(frozen=True)
class Fuzzed:
    """One mutated adapter; `origin` is the key of the good one in `good_adapters`."""

    origin: str
    mutation: str
    files: Files
    must_refuse: bool

    def write(self, directory: Path) -> Path:
        directory.mkdir()
        for name, content in self.files.items():
            (directory / name).write_bytes(content)
        return directory


@cache
def good_adapters() -> dict[str, Files]:
    """The files of good adapters, by kind."""
    tensors = random_tensors(find_sites(make_tiny_model("qwen3")), _LEAVES, 4)
    config = config_fields(4, list(_LEAVES))
    extended = dict(tensors)
    for key in [key for key in tensors if "lora_B" in key]:
        module = key.removesuffix(".lora_B.weight")
        extended[f"{module}.lora_magnitude_vector"] = torch.rand(tensors[key].shape[0]) + 0.5
        extended[f"{module}.base_layer.bias"] = torch.rand(tensors[key].shape[0])
    keys = sorted(tensors)
    halves = [{key: tensors[key] for key in half} for half in (keys[::2], keys[1::2])]
    index = {key: name for name, half in zip(_SHARDS, halves, strict=True) for key in half}
    pickled = io.BytesIO()
    torch.save(tensors, pickled)
    return {
        "plain": {CONFIG: _json(config), WEIGHTS: save(tensors, {"format": "pt"})},
        "extended": {CONFIG: _json({**config, "use_dora": True, "bias": "lora_only"}), WEIGHTS: save(extended)},
        "sharded": {
            CONFIG: _json(config),
            INDEX: _json({"metadata": {}, "weight_map": index}),
            **{name: save(half) for name, half in zip(_SHARDS, halves, strict=True)},
        },
        "pickled": {CONFIG: _json(config), "adapter_model.bin": pickled.getvalue()},
        "nemo": {"adapter.nemo": _nemo_archive()},
    }


def fuzz(seed: int) -> Fuzzed:
    """The case of a seed."""
    rng = random.Random(seed)
    origin = rng.choice(list(good_adapters()))
    files = dict(good_adapters()[origin])
    mutations = list(_BYTES) + (list(_VALUES) if CONFIG in files else []) + (list(_TENSORS) if WEIGHTS in files else [])
    mutation = rng.choice(mutations)
    if mutation in _BYTES:
        name = rng.choice(list(files))
        files[name] = _BYTES[mutation](rng, files[name])
        return Fuzzed(origin, f"{mutation} {name}", files, must_refuse=False)
    if mutation in _VALUES:
        config = json.loads(files[CONFIG])
        must_refuse = _VALUES[mutation](rng, config)
        files[CONFIG] = _json(config)
        return Fuzzed(origin, mutation, files, must_refuse)
    tensors = load(files[WEIGHTS])
    must_refuse = _TENSORS[mutation](rng, tensors)
    files[WEIGHTS] = save({key: tensor.contiguous() for key, tensor in tensors.items()})
    return Fuzzed(origin, mutation, files, must_refuse)


def _json(content: object) -> bytes:
    return json.dumps(content).encode()


def _nemo_archive() -> bytes:
    prefix = "model.layers.{}.self_attention.adapter_layer.lora_kqv_adapter.linear_{}.weight"
    shapes = {"in": (4, 72), "out": (160, 4)}
    weights = io.BytesIO()
    torch.save({prefix.format(layer, half): torch.randn(shapes[half]) for layer in (0, 1) for half in shapes}, weights)
    members = {
        "model_weights.ckpt": weights.getvalue(),
        "model_config.yaml": b"num_attention_heads: 6\nnum_query_groups: 2\n",
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive.getvalue()


# Bytes of one file


def _flip(rng: random.Random, content: bytes) -> bytes:
    # The front half of the time, where the headers are.
    changed = bytearray(content)
    reach = len(changed) if rng.random() < 0.5 else min(len(changed), 2000)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _remove(rng: random.Random, content: bytes) -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + content[start + rng.randint(1, 200) :]


def _repeat(rng: random.Random, content: bytes) -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + content[start : start + rng.randint(1, 200)] + content[start:]


_BYTES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "cut": lambda rng, content: content[: rng.randrange(len(content))],
    "flip": _flip,
    "flip once more": _flip,
    "remove from": _remove,
    "repeat in": _repeat,
    "append to": lambda rng, content: content + rng.randbytes(rng.randint(1, 50)),
    "replace": lambda rng, content: rng.randbytes(rng.randint(0, 2000)),
    "zero": lambda rng, content: bytes(len(content)),
}


# Values of the configuration


def _odd_value(rng: random.Random) -> object:
    return rng.choice([
        None, True, False, 0, -1, 3, 5, 2**63, 10**400, 0.5, float("nan"), float("inf"), "", "q_proj", "(", "[a-", "*",
        ".*", "all-linear", r"(?:.|\w)*j(?<!j)", [], ["q_proj"], [1], [None], {}, {"q_proj": 3}, {"(": 2}, {"a": {}},
        "x" * 20_000, "lora_only", "\ud800", [["q_proj"]],
    ])  # fmt: skip


def _set_field(rng: random.Random, config: dict[str, object]) -> bool:
    config[rng.choice(list(config))] = _odd_value(rng)
    return False


def _set_known_field(rng: random.Random, config: dict[str, object]) -> bool:
    fields = "use_dora use_rslora lora_bias bias rank_pattern alpha_pattern exclude_modules layers_to_transform"
    others = "layers_pattern ensure_weight_tying modules_to_save base_model_name_or_path fan_in_fan_out"
    config[rng.choice([*fields.split(), *others.split()])] = _odd_value(rng)
    return False


def _change_rank(rng: random.Random, config: dict[str, object]) -> bool:
    config["r"] = rng.choice([1, 2, 3, 5, 8, 64, 1000])
    return True


def _lose_target(rng: random.Random, config: dict[str, object]) -> bool:
    config["target_modules"] = [rng.choice(_LEAVES)]
    return True


_VALUES: dict[str, Callable[[random.Random, dict[str, object]], bool]] = {
    "set a field": _set_field,
    "set another field": _set_known_field,
    "add an unknown field": lambda rng, config: not config.update({"x": rng.choice([1, "y", [0]])}),
    "change the rank": _change_rank,
    "lose a target": _lose_target,
    "lose a field": lambda rng, config: bool(config.pop(rng.choice(["peft_type", "target_modules", "r"]))),
}


# Tensors


def _rename(rng: random.Random, tensors: dict[str, torch.Tensor]) -> bool:
    key = rng.choice(list(tensors))
    at = rng.randrange(len(PREFIX), len(key))
    letter = rng.choice([letter for letter in "abcdxyzABQ0123456789._" if letter != key[at]])
    tensors[key[:at] + letter + key[at + 1 :]] = tensors.pop(key)
    return True


def _swap_names(rng: random.Random, tensors: dict[str, torch.Tensor]) -> bool:
    one, other = rng.sample(list(tensors), 2)
    tensors[one], tensors[other] = tensors[other], tensors[one]
    return tensors[one].shape != tensors[other].shape


def _reshape(rng: random.Random, tensors: dict[str, torch.Tensor]) -> bool:
    key = rng.choice(list(tensors))
    tensor = tensors[key]
    shapes = [tensor.flatten()[:-1], tensor[:-1], tensor.unsqueeze(0), tensor[:0], torch.cat([tensor, tensor])]
    shapes += [tensor.t()] if tensor.dim() == 2 else [tensor[:, None]]
    tensors[key] = rng.choice(shapes)
    return True


def _cast(rng: random.Random, tensors: dict[str, torch.Tensor]) -> bool:
    key = rng.choice(list(tensors))
    dtype = rng.choice([torch.int8, torch.int64, torch.bool, torch.uint8])
    tensors[key] = tensors[key].to(dtype)
    return True


def _lose(rng: random.Random, tensors: dict[str, torch.Tensor]) -> bool:
    key = rng.choice([key for key in tensors if not key.endswith(".bias")])
    del tensors[key]
    return True


def _add_twin(rng: random.Random, tensors: dict[str, torch.Tensor]) -> bool:
    key = rng.choice(list(tensors))
    tensors[key.removeprefix(PREFIX)] = tensors[key].clone()
    return True


def _poison(rng: random.Random, tensors: dict[str, torch.Tensor]) -> bool:
    values = tensors[rng.choice(list(tensors))].view(-1)
    values[rng.randrange(len(values))] = rng.choice([torch.nan, torch.inf, -torch.inf])
    return True


_TENSORS: dict[str, Callable[[random.Random, dict[str, torch.Tensor]], bool]] = {
    "rename a tensor": _rename,
    "swap two tensors": _swap_names,
    "reshape a tensor": _reshape,
    "cast a tensor": _cast,
    "lose a tensor": _lose,
    "add a twin": _add_twin,
    "poison a value": _poison,
}
