"""What users get wrong, through the whole engine: each mistake has its own message, and the next request is served."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tensorrt_lora import LLM, LoraConfig, LoRARequest, SamplingParams
from tensorrt_lora.llmapi.request_output import RequestError
from tests.support.tiny_adapters import config_fields, find_sites, lora_pair, random_tensors, write_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

MAX_RANK = 8
PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)
PROMPT = [1, 2, 3, 4, 5]
_ids = itertools.count(100)

Spoil = Callable[[Path], None]


def edit_config(**fields: object) -> Spoil:
    def spoil(directory: Path) -> None:
        path = directory / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return spoil


def edit_tensors(edit: Callable[[dict[str, torch.Tensor]], None]) -> Spoil:
    def spoil(directory: Path) -> None:
        path = directory / "adapter_model.safetensors"
        tensors = load_file(path)
        edit(tensors)
        save_file(tensors, path)

    return spoil


def add_tensors(tensors: dict[str, torch.Tensor]) -> Spoil:
    return edit_tensors(lambda present: present.update(tensors))


def drop_one_half(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]


def widen_one(tensors: dict[str, torch.Tensor]) -> None:
    tensors["base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight"] = torch.randn(4, 73)


def poison_one(tensors: dict[str, torch.Tensor]) -> None:
    tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"][0, 0] = torch.nan


def truncate(directory: Path) -> None:
    path = directory / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


BAD_ADAPTERS: dict[str, tuple[Spoil, str]] = {
    "no config": (lambda d: (d / "adapter_config.json").unlink(), r"adapter_config\.json"),
    "config is not JSON": (lambda d: (d / "adapter_config.json").write_text("{"), r"adapter_config\.json.*JSON"),
    "no weights": (lambda d: (d / "adapter_model.safetensors").unlink(), r"adapter_model\.safetensors"),
    "truncated weights": (truncate, r"adapter_model\.safetensors"),
    "empty weights": (lambda d: save_file({}, d / "adapter_model.safetensors"), r"no tensors|0 tensors"),
    "another PEFT type": (edit_config(peft_type="IA3"), r"peft_type.*IA3"),
    "DoRA": (edit_config(use_dora=True), r"use_dora|DoRA"),
    "bias": (edit_config(bias="all"), r"bias"),
    "modules to save": (edit_config(modules_to_save=["lm_head"]), r"modules_to_save.*lm_head"),
    "layer replication": (edit_config(layer_replication=[[0, 2]]), r"layer_replication"),
    "an unknown setting": (edit_config(some_future_field={"a": 1}), r"some_future_field"),
    "rank above the limit": (
        lambda d: write_adapter(
            d,
            lora_pair("model.layers.0.self_attn.q_proj", MAX_RANK + 1, 72, 96),
            config_fields(MAX_RANK + 1, ["q_proj"]),
        ),
        rf"rank {MAX_RANK + 1}.*max_lora_rank.*{MAX_RANK}",
    ),
    "wrong width": (edit_tensors(widen_one), r"layers\.1\.self_attn\.v_proj.*73.*72"),
    "missing half": (edit_tensors(drop_one_half), r"layers\.0\.self_attn\.q_proj.*lora_B"),
    "NaN": (edit_tensors(poison_one), r"layers\.1\.self_attn\.q_proj.*(NaN|finite)"),
    "a layer that does not exist": (
        add_tensors(lora_pair("model.layers.7.self_attn.q_proj", 4, 72, 96)),
        r"layers\.7\.self_attn\.q_proj",
    ),
    "a module that does not exist": (
        add_tensors(lora_pair("model.layers.0.self_attn.w_pack", 4, 72, 96)),
        r"layers\.0\.self_attn\.w_pack",
    ),
    "a norm tensor": (
        add_tensors({"base_model.model.model.layers.0.input_layernorm.weight": torch.ones(72)}),
        r"input_layernorm",
    ),
    "a module that the config does not target": (
        add_tensors(lora_pair("model.layers.0.self_attn.k_proj", 4, 72, 32)),
        r"k_proj.*target",
    ),
    "a module that the engine does not target": (
        lambda d: write_adapter(
            d, lora_pair("model.layers.0.mlp.up_proj", 4, 72, 112), config_fields(4, ["up_proj"])
        ),
        r"up_proj.*lora_target_modules",
    ),
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def llm(model_dir: Path) -> Iterator[LLM]:
    lora_config = LoraConfig(
        max_lora_rank=MAX_RANK, max_loras=2, lora_target_modules=["attn_q", "attn_k", "attn_v", "mlp_4h_to_h"]
    )
    with LLM(model=model_dir, executor="inline", device="cpu", max_seq_len=64, lora_config=lora_config) as llm:
        yield llm


@pytest.fixture
def good(tmp_path: Path) -> LoRARequest:
    tensors = random_tensors(find_sites(make_tiny_model("qwen3")), ("q_proj", "v_proj"), 4)
    directory = write_adapter(tmp_path / "good", tensors, config_fields(4, ["q_proj", "v_proj"]))
    return LoRARequest("good", next(_ids), str(directory))


def answer(llm: LLM, adapter: LoRARequest | None = None) -> list[int]:
    return llm.generate(PROMPT, PARAMS, adapter).outputs[0].token_ids


@pytest.mark.parametrize("kind", BAD_ADAPTERS)
def test_a_bad_adapter_fails_alone_and_by_name(llm: LLM, good: LoRARequest, tmp_path: Path, kind: str):
    spoil, message = BAD_ADAPTERS[kind]
    expected, base = answer(llm, good), answer(llm)
    tensors = random_tensors(find_sites(make_tiny_model("qwen3")), ("q_proj", "v_proj"), 4)
    directory = write_adapter(tmp_path / "bad", tensors, config_fields(4, ["q_proj", "v_proj"]))
    spoil(directory)
    bad = LoRARequest("spoiled", next(_ids), str(directory))
    outputs = llm.generate([PROMPT] * 3, PARAMS, [good, bad, None])
    assert [output.error is None for output in outputs] == [True, False, True]
    assert [outputs[0].outputs[0].token_ids, outputs[2].outputs[0].token_ids] == [expected, base]
    with pytest.raises(RequestError, match=r"(?s)'spoiled'.*" + message):
        llm.generate(PROMPT, PARAMS, bad)
    assert answer(llm, good) == expected


BAD_REQUESTS: dict[str, tuple[list[int], SamplingParams, str]] = {
    "empty prompt": ([], PARAMS, r"prompt is empty"),
    "token outside the vocabulary": ([1, 272], PARAMS, r"token id 272.*0 to 271"),
    "negative token": ([-1], PARAMS, r"-1"),
    "too long": ([1] * 61, PARAMS, r"61 tokens and max_tokens=4 exceed max_seq_len=64"),
    "too much asked for": ([1], SamplingParams(max_tokens=64), r"max_tokens=64 exceed max_seq_len=64"),
}


@pytest.mark.parametrize("kind", BAD_REQUESTS)
def test_a_bad_request_fails_alone(llm: LLM, kind: str):
    prompt, params, message = BAD_REQUESTS[kind]
    expected = answer(llm)
    with pytest.raises(ValueError, match=message):
        llm.generate({"prompt_token_ids": prompt}, params)
    outputs = llm.generate([PROMPT, [1] * 62], PARAMS)
    assert outputs[0].outputs[0].token_ids == expected and "max_seq_len" in str(outputs[1].error)


def test_an_id_that_stands_for_another_adapter_is_refused(llm: LLM, good: LoRARequest, tmp_path: Path):
    expected = answer(llm, good)
    with pytest.raises(RequestError, match=rf"{good.lora_int_id}.*good"):
        llm.generate(PROMPT, PARAMS, LoRARequest("other", good.lora_int_id, good.lora_path))
    assert answer(llm, good) == expected


def test_a_path_that_does_not_exist_is_named(llm: LLM):
    with pytest.raises(RequestError, match=r"'gone'.*/no/such/adapter"):
        llm.generate(PROMPT, PARAMS, LoRARequest("gone", next(_ids), "/no/such/adapter"))
    assert answer(llm)


BAD_SETTINGS: dict[str, tuple[dict[str, object], str]] = {
    "no such model": ({"model": "/no/such/model"}, r"/no/such/model"),
    "unknown setting": ({"max_batch": 3}, r"max_batch"),
    "tensor parallelism": ({"tensor_parallel_size": 2}, r"tensor_parallel_size=2"),
    "FlashInfer on a CPU": ({"attn_backend": "FLASHINFER"}, r"FLASHINFER.*CUDA"),
    "more tokens than the model allows": ({"max_seq_len": 513}, r"max_seq_len=513.*512"),
    "a KV cache too small for one sequence": (
        {"max_seq_len": 64, "kv_cache_config": {"max_tokens": 32}},
        r"max_seq_len=64 needs 4",
    ),
    "rank zero": ({"lora_config": {"max_lora_rank": 0}}, r"max_lora_rank"),
    "fewer adapters on the host than on the device": (
        {"lora_config": {"max_loras": 4, "max_cpu_loras": 3}},
        r"max_cpu_loras=3.*max_loras=4",
    ),
    "unknown target": ({"lora_config": {"lora_target_modules": ["q_proj"]}}, r"q_proj.*attn_q"),
    "no room for one adapter": (
        {"lora_config": {"max_lora_rank": 64}, "peft_cache_config": {"device_cache_percent": 1e-9}},
        r"max_lora_rank=64.*device_cache_percent",
    ),
}


@pytest.mark.parametrize("kind", BAD_SETTINGS)
def test_a_bad_setting_is_refused_at_the_start(model_dir: Path, kind: str):
    settings, message = BAD_SETTINGS[kind]
    with pytest.raises(ValueError, match=message):
        LLM(**{"model": model_dir, "executor": "inline", "device": "cpu", **settings})


def test_an_adapter_without_lora_config_is_refused(model_dir: Path, good: LoRARequest):
    with LLM(model=model_dir, executor="inline", device="cpu", max_seq_len=64) as llm:
        with pytest.raises(ValueError, match=r"lora_config"):
            llm.generate(PROMPT, PARAMS, good)
        assert answer(llm)
