"""Flags of the configuration against tensors of the file, and what a module has besides its pair."""

import pytest
import torch

from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.module_types import LoraModuleType
from tests.support.tiny_adapters import (
    PREFIX,
    config_fields,
    find_parameters,
    find_sites,
    random_tensors,
    write_adapter,
)
from tests.support.tiny_models import make_tiny_model

_Q0, _Q1 = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"
_Q = (0, LoraModuleType.ATTENTION_Q)
_VOCABULARY = LoraConfig(lora_target_modules=["attn_q", "embed_tokens", "lm_head"])


@pytest.fixture
def tensors(sites):
    return random_tensors(sites, ("q_proj",), 4)


@pytest.fixture
def write(tmp_path, tensors):
    def write(**fields: object):
        return write_adapter(tmp_path / "a1", tensors, config_fields(4, ["q_proj"], **fields))

    return write


def _extra(tensors, end, size=96, modules=(_Q0, _Q1)):
    for module in modules:
        tensors[f"{PREFIX}{module}.{end}"] = torch.rand(size) + 0.5


@pytest.mark.parametrize(("flag", "end"), [("use_dora", "lora_magnitude_vector"), ("lora_bias", "lora_B.bias")])
def test_flags_and_tensors_must_agree(write, refuse, read, tensors, flag, end):
    message = refuse(write(**{flag: True}))
    assert f"{flag}=true, but modules have no {end}; save the adapter again: {_Q0}, {_Q1}" in message
    _extra(tensors, end)
    assert set(read(write(**{flag: True})).modules) == {_Q, (1, LoraModuleType.ATTENTION_Q)}
    message = refuse(write())
    assert f"adapter_config.json has {flag}=false, but the file holds {end} tensors; set it to true" in message
    assert f"{PREFIX}{_Q0}.{end}, {PREFIX}{_Q1}.{end}" in message
    del tensors[f"{PREFIX}{_Q1}.{end}"]
    message = refuse(write(**{flag: True}))
    assert message.endswith(f"save the adapter again: {_Q1}")


@pytest.mark.parametrize(("end", "fields"), [
    ("lora_magnitude_vector", {"use_dora": True}),
    ("lora_B.bias", {"lora_bias": True}),
    ("base_layer.bias", {"bias": "all"}),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(95,), (96, 1), (1, 96), ()])
def test_vectors_have_one_value_for_each_output(write, refuse, tensors, end, fields, shape):
    _extra(tensors, end)
    tensors[f"{PREFIX}{_Q1}.{end}"] = torch.ones(shape)
    assert f"tensor {PREFIX}{_Q1}.{end}: got {list(shape)}, wanted [96]; " in refuse(write(**fields))


def test_vectors_without_a_pair(write, refuse, tensors):
    _extra(tensors, "lora_magnitude_vector")
    for half in ("lora_A", "lora_B"):
        del tensors[f"{PREFIX}{_Q1}.{half}.weight"]
    message = refuse(write(use_dora=True))
    for half in ("lora_A", "lora_B"):
        assert f"{_Q1}: {half} is missing beside {PREFIX}{_Q1}.lora_magnitude_vector" in message


@pytest.mark.parametrize("bias", ["none", "lora_only"])
def test_trained_base_biases_need_their_flag(write, refuse, tensors, bias):
    _extra(tensors, "base_layer.bias")
    _extra(tensors, "bias", 32, ["model.layers.0.self_attn.k_proj"])
    message = refuse(write(bias=bias))
    wanted = f"adapter_config.json has bias='{bias}', but the file holds trained biases of the base layers; set bias to"
    assert f"{wanted} 'all' or remove them: {PREFIX}model.layers.0.self_attn.k_proj.bias" in message
    of_a_target = f"{wanted} 'lora_only' or 'all' or remove them: {PREFIX}{_Q0}.base_layer.bias"
    assert (of_a_target in message) == (bias == "none")


def test_a_bias_alone_has_rank_zero(write, read, tensors):
    _extra(tensors, "bias", 32, ["model.layers.0.self_attn.k_proj"])
    module = read(write(bias="all")).modules[0, LoraModuleType.ATTENTION_K]
    assert (module.rank, module.a.shape, module.b.shape) == (0, (0, 72), (0, 32))
    assert torch.equal(module.base_bias, tensors[f"{PREFIX}model.layers.0.self_attn.k_proj.bias"])


def test_biases_of_layers_that_have_none(write, refuse, tensors, model):
    _extra(tensors, "base_layer.bias")
    message = refuse(write(bias="lora_only"), parameters=find_parameters(model))
    assert "trained biases of layers that have none in this model; serve the base that the adapter was" in message
    assert f"{PREFIX}{_Q0}.base_layer.bias, {PREFIX}{_Q1}.base_layer.bias" in message


def test_biases_that_the_trainer_lost_are_logged(read, tmp_path, caplog):
    model = make_tiny_model("qwen2")
    sites = find_sites(model)
    directory = write_adapter(
        tmp_path, random_tensors(sites, ("q_proj",), 4), config_fields(4, ["q_proj"], bias="lora_only")
    )
    read(directory, of=sites, parameters=find_parameters(model))
    assert f"bias='lora_only', but the file holds no bias of 2 modules, like {_Q0}; they keep the base's" in caplog.text


def test_fused_vectors_are_split_like_their_b(read, sites, tmp_path):
    fused = "model.layers.0.self_attn.qkv_proj"
    tensors = {
        f"{PREFIX}{fused}.lora_A.weight": torch.randn(4, 72),
        f"{PREFIX}{fused}.lora_B.weight": torch.randn(160, 4),
        f"{PREFIX}{fused}.lora_B.bias": torch.randn(160),
        f"{PREFIX}{fused}.base_layer.bias": torch.randn(160),
    }
    fields = config_fields(4, ["qkv_proj"], lora_bias=True, bias="lora_only", lora_alpha=12)
    weights = read(write_adapter(tmp_path, tensors, fields))
    sizes = {LoraModuleType.ATTENTION_Q: 96, LoraModuleType.ATTENTION_K: 32, LoraModuleType.ATTENTION_V: 32}
    parts = [weights.modules[0, module_type] for module_type in sizes]
    assert torch.equal(torch.cat([part.bias for part in parts]), 3.0 * tensors[f"{PREFIX}{fused}.lora_B.bias"])
    assert torch.equal(torch.cat([part.base_bias for part in parts]), tensors[f"{PREFIX}{fused}.base_layer.bias"])
    assert [part.bias.numel() for part in parts] == list(sizes.values())


# The embedding and the head


def _vocabulary(model):
    sites = find_sites(model, with_vocabulary=True)
    tensors = {
        f"{PREFIX}model.embed_tokens.lora_embedding_A": torch.randn(4, 272),
        f"{PREFIX}model.embed_tokens.lora_embedding_B": torch.randn(72, 4),
        f"{PREFIX}lm_head.lora_A.weight": torch.randn(4, 72),
        f"{PREFIX}lm_head.lora_B.weight": torch.randn(272, 4),
    }
    return sites, tensors, config_fields(4, ["embed_tokens", "lm_head"])


def test_the_embedding_and_the_head_bind(read, model, tmp_path):
    sites, tensors, fields = _vocabulary(model)
    weights = read(write_adapter(tmp_path, tensors, fields), _VOCABULARY, of=sites)
    assert weights.modules[-1, LoraModuleType.EMBED_TOKENS].a.shape == (4, 272)
    assert weights.modules[-1, LoraModuleType.LM_HEAD].b.shape == (4, 272)


@pytest.mark.parametrize(("key", "shape", "message"), [
    ("model.embed_tokens.lora_embedding_A", (4, 275), "got [4, 275], wanted [4, 272]"),
    ("lm_head.lora_B.weight", (275, 4), "got [275, 4], wanted [272, 4]"),
])  # fmt: skip
def test_another_vocabulary(refuse, model, tmp_path, key, shape, message):
    sites, tensors, fields = _vocabulary(model)
    tensors[PREFIX + key] = torch.randn(shape)
    told = refuse(write_adapter(tmp_path, tensors, fields), _VOCABULARY, of=sites)
    assert f"tensor {PREFIX}{key}: {message}; the configuration gives this module rank" not in told
    assert f"tensor {PREFIX}{key}: {message}; the vocabulary or the model was another in training" in told


def test_linear_names_on_the_embedding_and_the_other_way_round(refuse, model, tmp_path):
    sites, tensors, fields = _vocabulary(model)
    swapped = {
        key.replace("lora_embedding_A", "lora_A.weight").replace("lora_embedding_B", "lora_B.weight"): tensor
        for key, tensor in tensors.items()
    }
    message = refuse(write_adapter(tmp_path / "1", swapped, fields), _VOCABULARY, of=sites)
    assert "embed_tokens.lora_A.weight: model.embed_tokens takes lora_embedding_A and lora_embedding_B" in message
    linear = {
        f"{PREFIX}{_Q0}.lora_embedding_A": torch.randn(4, 72),
        f"{PREFIX}{_Q0}.lora_embedding_B": torch.randn(96, 4),
    }
    message = refuse(write_adapter(tmp_path / "2", linear, config_fields(4, ["q_proj"])), _VOCABULARY, of=sites)
    assert f"tensor {PREFIX}{_Q0}.lora_embedding_A: {_Q0} takes lora_A and lora_B; save it again" in message


def test_modules_that_the_engine_must_be_told_are_named_together(refuse, model, sites, tmp_path):
    _, tensors, fields = _vocabulary(model)
    message = refuse(write_adapter(tmp_path, tensors, fields))
    assert "LoRA on lm_head and embed_tokens is served where lora_target_modules names it; set" in message
    assert message.endswith("'mlp_4h_to_h', 'mlp_gate', 'lm_head', 'embed_tokens']")


def test_a_copy_of_the_base_beside_the_adapter_is_ignored(read, refuse, model, tmp_path, caplog):
    sites, tensors, fields = _vocabulary(model)
    parameters = find_parameters(model)
    copies = (f"{PREFIX}model.embed_tokens.base_layer.weight", f"{PREFIX}lm_head.weight")
    for key in copies:
        tensors[key] = parameters["lm_head.weight"].bfloat16()
    read(write_adapter(tmp_path, tensors, fields), _VOCABULARY, of=sites, parameters=parameters)
    assert all(f"ignored {key}, a copy of the model's own" in caplog.text for key in copies)
    tensors[copies[1]] = tensors[copies[1]] + 1
    message = refuse(write_adapter(tmp_path, tensors, fields), _VOCABULARY, of=sites, parameters=parameters)
    assert f"tensor {copies[1]}: holds other values than the model's lm_head; fully trained modules" in message


def test_a_tied_head_must_be_the_embedding_turned_over(read, refuse, model, tmp_path):
    sites, tensors, fields = _vocabulary(model)
    fields |= {"target_modules": ["model.embed_tokens"], "ensure_weight_tying": True}
    message = refuse(write_adapter(tmp_path, tensors, fields), _VOCABULARY, of=sites)
    a = f"tensor {PREFIX}lm_head.lora_A.weight is not {PREFIX}model.embed_tokens.lora_embedding_B transposed"
    assert a in message and "2 problems" in message
    tensors[f"{PREFIX}lm_head.lora_A.weight"] = tensors[f"{PREFIX}model.embed_tokens.lora_embedding_B"].t()
    tensors[f"{PREFIX}lm_head.lora_B.weight"] = tensors[f"{PREFIX}model.embed_tokens.lora_embedding_A"].t()
    assert len(read(write_adapter(tmp_path, tensors, fields), _VOCABULARY, of=sites).modules) == 2
    fields["ensure_weight_tying"] = False
    message = refuse(write_adapter(tmp_path, tensors, fields), _VOCABULARY, of=sites)
    assert "lm_head has tensors but adapter_config.json does not target it" in message
