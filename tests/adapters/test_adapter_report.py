"""The report says what loading would do, in the same words."""

import json

import pytest
import torch

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.adapters.adapter_report import AdapterReport, check_adapter
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora_request import LoRARequest
from tests.support.tiny_adapters import PREFIX, config_fields, lora_pair, random_tensors, write_adapter

_Q0 = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def reader(sites):
    return AdapterReader(sites, LoraConfig(max_lora_rank=8), torch.bfloat16)


def _check(reader, directory, **arguments) -> AdapterReport:
    request = LoRARequest("a1", 1, str(directory))
    report = check_adapter(reader, request, **arguments)
    try:
        reader.read(request)
        told: tuple[str, ...] = ()
    except AdapterError as error:
        told = error.problems
    assert report.problems == told or arguments
    return report


def test_a_good_adapter(reader, sites, tmp_path):
    tensors = {key: tensor.half() for key, tensor in random_tensors(sites, ("q_proj", "up_proj"), 4).items()}
    tensors["model.rotary_emb.inv_freq"] = torch.ones(4)
    report = _check(reader, write_adapter(tmp_path, tensors, config_fields(4, ["q_proj", "up_proj", "w1"])))
    assert report.ok and report.problems == ()
    assert (report.max_rank, report.num_sites, report.dtype) == (4, 14, "bfloat16")
    assert report.stored_dtypes == ("float16", "float32")
    assert report.target_modules == ("mlp_gate", "attn_q")
    assert report.nbytes == 2 * 2 * 4 * ((72 + 96) + (72 + 112))
    assert {(module.rank, module.scale, module.extras) for module in report.modules} == {(4, 2.0, ())}
    assert [note.partition(":")[0] for note in report.notes] == [
        "ignored buffers of the base model",
        "target_modules without any tensor",
    ]


def test_what_a_module_has_besides_its_pair(reader, sites, tmp_path):
    tensors = random_tensors(sites, ("q_proj",), 4)
    for layer in (0, 1):
        module = f"{PREFIX}model.layers.{layer}.self_attn.q_proj"
        tensors |= {f"{module}.lora_magnitude_vector": torch.ones(96), f"{module}.base_layer.bias": torch.ones(96)}
    report = _check(reader, write_adapter(tmp_path, tensors, config_fields(4, ["q_proj"], use_dora=True, bias="all")))
    assert report.modules[0].extras == ("DoRA", "base bias")
    assert report.modules[0].nbytes == 2 * (4 * (72 + 96) + 96) + 4 * 96


def test_a_fused_module_is_one_with_several_targets(reader, tmp_path):
    fused = "model.layers.0.self_attn.qkv_proj"
    report = _check(reader, write_adapter(tmp_path, lora_pair(fused, 4, 72, 160), config_fields(4, ["qkv_proj"])))
    assert [module.name for module in report.modules] == [fused]
    assert report.target_modules == ("attn_q", "attn_k", "attn_v")


def test_every_problem_is_there_with_what_could_be_bound(reader, sites, tmp_path):
    tensors = random_tensors(sites, ("q_proj",), 9)
    tensors[f"{PREFIX}model.layers.0.foo.weight"] = torch.ones(2)
    report = _check(reader, write_adapter(tmp_path, tensors, config_fields(9, ["q_proj"], layer_replication=[[0, 2]])))
    assert not report.ok and len(report.problems) == 4
    assert [module.rank for module in report.modules] == [9, 9]


@pytest.mark.parametrize("spoil", ["directory", "json", "nan"])
def test_an_adapter_that_cannot_be_read(reader, sites, tmp_path, spoil):
    tensors = random_tensors(sites, ("q_proj",), 4)
    if spoil == "nan":
        tensors[f"{PREFIX}{_Q0}.lora_A.weight"][0, 0] = torch.nan
    directory = write_adapter(tmp_path / "a1", tensors, config_fields(4, ["q_proj"]))
    if spoil == "json":
        (directory / "adapter_config.json").write_text("{")
    report = _check(reader, tmp_path / "gone" if spoil == "directory" else directory)
    assert not report.ok and len(report.problems) == 1
    assert (report.version is None) == (spoil != "nan")


def test_an_adapter_too_large_for_the_host(reader, sites, tmp_path):
    directory = write_adapter(tmp_path, random_tensors(sites, ("q_proj",), 4), config_fields(4, ["q_proj"]))
    report = _check(reader, directory, max_bytes=100)
    assert "peft_cache_config.host_cache_size is 100; raise it to 2688" in report.problems[0]


def test_a_report_is_json(reader, sites, tmp_path):
    directory = write_adapter(tmp_path, random_tensors(sites, ("q_proj",), 4), config_fields(4, ["q_proj"]))
    report = _check(reader, directory)
    content = json.loads(json.dumps(report.to_dict()))
    assert (content["ok"], content["max_rank"], content["nbytes"]) == (True, 4, report.nbytes)
    assert content["target_modules"] == ["attn_q"] and len(content["modules"]) == 2


def test_copies_that_could_not_be_compared_are_named(sites, model, tmp_path):
    key = f"{PREFIX}lm_head.base_layer.weight"
    tensors = {**random_tensors(sites, ("q_proj",), 4), key: torch.ones(272, 72)}
    request = LoRARequest("a1", 1, str(write_adapter(tmp_path, tensors, config_fields(4, ["q_proj"]))))
    base = {"lm_head.weight": torch.zeros(272, 72)}
    for parameters, compared in (({name: t.to("meta") for name, t in base.items()}, False), (base, True)):
        reader = AdapterReader(sites, LoraConfig(), torch.float32, base_parameters=parameters)
        report = check_adapter(reader, request)
        assert report.ok is not compared and report.not_compared == (() if compared else (key,))
        assert report.to_dict()["not_compared"] == report.not_compared


@pytest.mark.parametrize("path", ["x" * 5000, "~nosuchuser/x", "a\0b", "\ud800"], ids=range(4))
def test_no_path_makes_a_check_raise(reader, path):
    assert len(_check(reader, path).problems) == 1
