"""A good adapter, and the many ways to spoil it: what is done to its files, and what its reader must be told.

The adapter is of rank 4 on q_proj and v_proj of the tiny Qwen3, for an engine with `LORA_CONFIG`.
"""

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tensorrt_lora.config.lora_config import LoraConfig
from tests.support.tiny_adapters import PREFIX, config_fields, find_sites, lora_pair, random_tensors, write_adapter
from tests.support.tiny_models import make_tiny_model

MAX_RANK = 8
LORA_CONFIG = LoraConfig(
    max_lora_rank=MAX_RANK, max_loras=2, lora_target_modules=["attn_q", "attn_k", "attn_v", "mlp_4h_to_h"]
)
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_Q0, _Q1, _V1 = (f"model.layers.{end}" for end in ("0.self_attn.q_proj", "1.self_attn.q_proj", "1.self_attn.v_proj"))

Spoil = Callable[[Path], object]


def write_good_adapter(directory: Path, *, seed: int = 0) -> Path:
    tensors = random_tensors(find_sites(make_tiny_model("qwen3")), ("q_proj", "v_proj"), 4, seed=seed)
    return write_adapter(directory, tensors, config_fields(4, ["q_proj", "v_proj"]))


def _config(**fields: object) -> Spoil:
    def spoil(directory: Path) -> None:
        path = directory / CONFIG
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return spoil


def _text(text: str | bytes) -> Spoil:
    return lambda directory: (directory / CONFIG).write_bytes(text.encode() if isinstance(text, str) else text)


def _tensors(edit: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    def spoil(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS)
        edit(tensors)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, directory / WEIGHTS)

    return spoil


def _add(tensors: dict[str, torch.Tensor]) -> Spoil:
    return _tensors(lambda present: present.update(tensors))


def _set(module: str, end: str, tensor: torch.Tensor) -> Spoil:
    return _add({f"{PREFIX}{module}.{end}": tensor})


def _rename(old: str, new: str) -> Spoil:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if old in key]:
            tensors[key.replace(old, new)] = tensors.pop(key)

    return _tensors(edit)


def _bytes(edit: Callable[[bytes], bytes]) -> Spoil:
    return lambda directory: (directory / WEIGHTS).write_bytes(edit((directory / WEIGHTS).read_bytes()))


def _pickle(content: bytes) -> Spoil:
    def spoil(directory: Path) -> None:
        (directory / WEIGHTS).unlink()
        (directory / "adapter_model.bin").write_bytes(content)

    return spoil


def _all(*spoils: Spoil) -> Spoil:
    return lambda directory: [spoil(directory) for spoil in spoils]


def _poison(value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors[f"{PREFIX}{_Q1}.lora_A.weight"].view(-1)[0].fill_(value)


def _saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


class _Code:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("this must never run",))


_TOO_LARGE = lora_pair(_Q0, MAX_RANK + 1, 72, 96)
_BIASES = {f"{PREFIX}{module}.base_layer.bias": torch.ones(96) for module in (_Q0, _Q1)}
_HEAD = {f"{PREFIX}lm_head.lora_A.weight": torch.ones(4, 72), f"{PREFIX}lm_head.lora_B.weight": torch.ones(272, 4)}

# A regular expression for the message, which begins with the adapter's name and path.
MALFORMED: dict[str, tuple[Spoil, str]] = {
    # Files
    "no config": (lambda d: (d / CONFIG).unlink(), r"adapter_config\.json is not there or not a file"),
    "config is cut": (_text('{"r": 4'), r"adapter_config\.json is not valid JSON: Expecting"),
    "config is empty": (_text(""), r"adapter_config\.json is not valid JSON"),
    "config is no text": (_text(b"\xff\xfe{}"), r"adapter_config\.json is not valid JSON"),
    "config is a list": (_text("[]"), r"adapter_config\.json must hold a JSON object, got list"),
    "config is nested too deeply": (_text("[" * 100_000), r"adapter_config\.json is not valid JSON"),
    "config is huge": (
        _text(" " * (2**24 + 1)),
        r"adapter_config\.json has 16777217 bytes, at most 16777216 are read",
    ),
    "no weights": (
        lambda d: (d / WEIGHTS).unlink(),
        r"found neither adapter_model\.safetensors nor adapter_model\.bin",
    ),
    "MLX file": (
        lambda d: (d / WEIGHTS).rename(d / "adapters.safetensors"),
        r"adapters\.safetensors is MLX's format",
    ),
    "torchtune file": (lambda d: (d / WEIGHTS).rename(d / "adapter_0.pt"), r"adapter_0\.pt is torchtune's format"),
    "GGUF file": (lambda d: (d / WEIGHTS).rename(d / "a.gguf"), r"a\.gguf is llama\.cpp's format"),
    "whole model": (lambda d: (d / WEIGHTS).rename(d / "model.safetensors"), r"model\.safetensors is a whole model"),
    "weights are cut": (
        _bytes(lambda data: data[:-100]),
        r"adapter_model\.safetensors is truncated or not a safetensors",
    ),
    "weights are empty": (_bytes(lambda data: b""), r"adapter_model\.safetensors is truncated or not a safetensors"),
    "weights have a tail": (_bytes(lambda data: data + b"0"), r"the tensors end elsewhere than the file"),
    "weights of no known dtype": (
        _bytes(lambda data: data.replace(b'"F32"', b'"F99"')),
        r"dtype 'F99' of .* not known",
    ),
    "no tensors": (lambda d: save_file({}, d / WEIGHTS), r"the weight file holds 0 tensors.*gather the weights"),
    "pickle with code": (
        _pickle(pickle.dumps({"a": _Code()})),
        r"adapter_model\.bin is truncated or holds more than",
    ),
    "pickle that is cut": (_pickle(_saved(_TOO_LARGE)[:-200]), r"adapter_model\.bin is truncated or holds more than"),
    "pickle of a list": (_pickle(_saved([1])), r"adapter_model\.bin must hold a dict of tensors, got list"),
    "pickle of numbers": (_pickle(_saved({"a": 1})), r"adapter_model\.bin: entry 'a' is int, not a dense tensor"),
    # Configuration
    "another method": (_config(peft_type="IA3"), r"peft_type='IA3': only LORA adapters are served"),
    "no method": (_config(peft_type=None), r"peft_type=None: only LORA adapters are served"),
    "another task": (_config(task_type="SEQ_CLS"), r"task_type='SEQ_CLS': only causal language models are served"),
    "PiSSA": (_config(init_lora_weights="pissa"), r"init_lora_weights='pissa': this start changes the base weights"),
    "QALoRA": (_config(use_qalora=True), r"use_qalora=True: QALoRA is not served"),
    "modules to save": (
        _config(modules_to_save=["lm_head"]),
        r"modules_to_save=\['lm_head'\]: fully trained modules",
    ),
    "trained tokens": (
        _config(trainable_token_indices=[5]),
        r"trainable_token_indices=\[5\]: trained token embeddings",
    ),
    "aLoRA": (
        _config(alora_invocation_tokens=[7]),
        r"alora_invocation_tokens=\[7\]: activated LoRA \(aLoRA\) is not",
    ),
    "layer replication": (_config(layer_replication=[[0, 2]]), r"layer_replication=\[\[0, 2\]\]: replicated layers"),
    "experts": (_config(target_parameters=["experts.w"]), r"target_parameters=.*LoRA on bare parameters"),
    "an unknown setting": (_config(some_future_field={"a": 1}), r"some_future_field=\{'a': 1\}: unknown field"),
    "rank is text": (_config(r="4"), r"r='4': must be an integer >= 1"),
    "alpha is NaN": (_config(lora_alpha=float("nan")), r"lora_alpha=nan: must be a finite number"),
    "no targets": (_config(target_modules=[]), r"target_modules is empty, so PEFT would apply nothing"),
    "targets are no pattern": (_config(target_modules="(q"), r"target_modules='\(q': must be a regular expression"),
    "a pattern without end": (
        _config(target_modules=r"(?:.|\w)*j(?<!j)"),
        r"the pattern '.*' takes too long to match names like",
    ),
    "bias is another word": (_config(bias="some"), r"bias='some': must be 'none', 'lora_only' or 'all'"),
    # Flags and tensors that disagree
    "DoRA without magnitudes": (_config(use_dora=True), r"use_dora=true, but modules have no lora_magnitude_vector"),
    "magnitudes without DoRA": (
        _set(_Q0, "lora_magnitude_vector", torch.ones(96)),
        r"use_dora=false, but the file holds lora_magnitude_vector tensors; set it to true .*0\.self_attn\.q_proj",
    ),
    "lora_bias without biases": (_config(lora_bias=True), r"lora_bias=true, but modules have no lora_B\.bias"),
    "biases without lora_bias": (
        _set(_Q0, "lora_B.bias", torch.ones(96)),
        r"lora_bias=false, but the file holds lora_B",
    ),
    "DoRA with lora_bias": (_config(use_dora=True, lora_bias=True), r"use_dora and lora_bias exclude each other"),
    "base biases without bias": (_add(_BIASES), r"bias='none', but the file holds trained biases of the base layers"),
    "base biases of a base without": (
        _all(_config(bias="lora_only"), _add(_BIASES)),
        r"trained biases of layers that have none in this model",
    ),
    "a module that the config does not target": (
        _add(lora_pair("model.layers.0.self_attn.k_proj", 4, 72, 32)),
        r"k_proj has tensors but adapter_config\.json does not target it",
    ),
    "another rank than the config's": (
        _config(r=2),
        r"got \[4, 72\], wanted \[2, 72\]; the configuration gives .*rank 2",
    ),
    # Shapes and values
    "rank above the limit": (
        lambda d: write_adapter(d, _TOO_LARGE, config_fields(MAX_RANK + 1, ["q_proj"])),
        rf"rank {MAX_RANK + 1} is above max_lora_rank={MAX_RANK}; raise it in LoraConfig to {MAX_RANK + 1}",
    ),
    "another width": (
        _set(_V1, "lora_A.weight", torch.ones(4, 73)),
        r"1\.self_attn\.v_proj.*got \[4, 73\], wanted \[4, 72\]",
    ),
    "transposed": (_set(_V1, "lora_A.weight", torch.ones(72, 4)), r"got \[72, 4\], wanted \[4, 72\]"),
    "no matrix": (_set(_V1, "lora_A.weight", torch.ones(4)), r"got \[4\], wanted \[4, 72\]"),
    "not gathered": (_set(_V1, "lora_A.weight", torch.ones(0)), r"got \[0\], wanted \[4, 72\]; it is empty: gather"),
    "integers": (_set(_V1, "lora_A.weight", torch.ones(4, 72, dtype=torch.int8)), r"dtype torch\.int8 is not served"),
    "NaN": (_tensors(_poison(torch.nan)), r"1\.self_attn\.q_proj\.lora_A\.weight: holds NaN or Inf"),
    "infinity": (_tensors(_poison(torch.inf)), r"1\.self_attn\.q_proj\.lora_A\.weight: holds NaN or Inf"),
    # Names
    "missing half": (
        _tensors(lambda tensors: tensors.pop(f"{PREFIX}{_Q0}.lora_B.weight")),
        r"0\.self_attn\.q_proj: lora_B is missing beside .*lora_A\.weight",
    ),
    "a layer beyond the model": (
        _add(lora_pair("model.layers.7.self_attn.q_proj", 4, 72, 96)),
        r"layers\.7\.self_attn\.q_proj.*layer 7 does not exist, the model has 0 to 1",
    ),
    "a module that the model lacks": (
        _add(lora_pair("model.layers.0.self_attn.w_pack", 4, 72, 96)),
        r"layers\.0\.self_attn\.w_pack.*no such module in this model; adapters may name self_attn\.q_proj",
    ),
    "a module that the engine leaves out": (
        lambda d: write_adapter(d, lora_pair("model.layers.0.mlp.up_proj", 4, 72, 112), config_fields(4, ["up_proj"])),
        r"lora_target_modules=.*leaves up_proj out; add 'mlp_gate'",
    ),
    "the head without being named": (
        _all(_config(target_modules=["q_proj", "v_proj", "lm_head"]), _add(_HEAD)),
        r"LoRA on lm_head is served where lora_target_modules names it; set .*=\['attn_q', .*'lm_head'\]",
    ),
    "a trained head": (
        _set("lm_head", "weight", torch.ones(272, 72)),
        r"lm_head\.weight: holds other values than the model's lm_head; fully trained modules are not served",
    ),
    "a changed vocabulary": (
        _set("model.embed_tokens", "weight", torch.ones(275, 72)),
        r"embed_tokens\.weight: got \[275, 72\], the model's embed_tokens is \[272, 72\]; the vocabulary was changed",
    ),
    "trained token rows": (
        _set("model.embed_tokens", "token_adapter.trainable_tokens_delta", torch.ones(2, 72)),
        r"trainable_tokens_delta: trained token embeddings are not served",
    ),
    "a trained norm": (
        _set("model.layers.0.input_layernorm", "weight", torch.ones(72)),
        r"input_layernorm\.weight: trained norms are not served",
    ),
    "a classifier": (
        _set("score", "weight", torch.ones(2, 72)),
        r"score\.weight: fully trained modules are not served",
    ),
    "a stranger": (_set("model.layers.0", "foo.weight", torch.ones(2)), r"foo\.weight: this is no LoRA tensor"),
    "MLX's names": (_rename("lora_A.weight", "lora_a"), r"lora_a: this is MLX's naming, its matrices are transposed"),
    "torchtune's names": (_rename("self_attn.q_proj.lora_A", "attn.q_proj.lora_a"), r"this is torchtune's naming"),
    "Mistral's names": (_rename("self_attn.q_proj", "attention.wq"), r"attention\.wq.*this is Mistral's own naming"),
    "names cut short": (_rename("lora_A.weight", "lora_A"), r"lora_A: this is not how PEFT names a LoRA tensor"),
    "two spellings of one tensor": (
        _add({f"{_Q0}.lora_A.weight": torch.ones(4, 72)}),
        r"are for the same module; keep one",
    ),
    "two adapters in one file": (
        _all(_rename("0.self_attn.q_proj.lora_A", "0.self_attn.q_proj.lora_A.one"),
             _rename("0.self_attn.q_proj.lora_B", "0.self_attn.q_proj.lora_B.two")),
        r"the file holds several adapters, one, two; save them one by one",
    ),
}  # fmt: skip
