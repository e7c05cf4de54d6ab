"""Every tensor binds, or the message lists those that do not; a test spoils one thing of a good adapter."""

import pytest
import torch

from tensorrt_lora.adapters import site_binder
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.module_types import LoraModuleType
from tests.support.tiny_adapters import PREFIX, config_fields, lora_pair, random_tensors, write_adapter

_LEAVES = ("q_proj", "v_proj", "gate_proj")
_Q0, _Q1 = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"


@pytest.fixture
def tensors(sites):
    return random_tensors(sites, _LEAVES, 4)


@pytest.fixture
def write(tmp_path, tensors):
    """Write the adapter as `tensors` now is, with further config fields."""

    def write(**fields: object):
        return write_adapter(tmp_path / "a1", tensors, config_fields(4, list(_LEAVES), **fields))

    return write


def test_a_good_adapter_binds_whole(write, read):
    weights = read(write())
    assert set(weights.modules) == {
        (layer, module_type)
        for layer in (0, 1)
        for module_type in (
            LoraModuleType.ATTENTION_Q,
            LoraModuleType.ATTENTION_V,
            LoraModuleType.MLP_H_TO_4H,
        )
    }


@pytest.mark.parametrize("dropped", ["1.self_attn.v_proj", "1.mlp.gate_proj", "q_proj"])
def test_any_subset_of_a_fused_group_is_legal(write, read, tensors, dropped, caplog):
    for key in [key for key in tensors if dropped in key]:
        del tensors[key]
    weights = read(write())
    assert len(weights.modules) == len(tensors) // 2
    assert "targeted modules have no tensors and stay as in the base, like model.layers" in caplog.text


def test_targets_without_any_tensor_are_logged(write, read, caplog):
    weights = read(write(target_modules=[*_LEAVES, "o_proj", "w1"]))
    assert len(weights.modules) == 6
    assert "adapter 'a1': target_modules without any tensor: o_proj, w1" in caplog.text
    assert "2 targeted modules have no tensors" in caplog.text


def test_unknown_tensors_are_listed_together(write, refuse, tensors):
    tensors[f"{PREFIX}model.layers.0.input_layernorm.weight"] = torch.ones(72)
    tensors[f"{PREFIX}model.layers.1.input_layernorm.weight"] = torch.ones(72)
    tensors[f"{PREFIX}model.layers.0.foo.weight"] = torch.ones(2)
    message = refuse(write())
    assert "2 problems" in message
    norms = ", ".join(f"{PREFIX}model.layers.{layer}.input_layernorm.weight" for layer in (0, 1))
    assert f"tensors {norms}: trained norms are not served" in message
    assert f"tensor {PREFIX}model.layers.0.foo.weight: this is no LoRA tensor" in message


def test_an_unknown_module_is_refused_with_the_expected_names(write, refuse, tensors):
    tensors |= lora_pair("model.layers.0.self_attn.c_attn", 4, 72, 96)
    message = refuse(write())
    assert "self_attn.c_attn.lora_A.weight, base_model.model.model.layers.0.self_attn.c_attn.lora_B.weight" in message
    assert "no such module in this model; adapters may name self_attn.q_proj, self_attn.k_proj" in message


def test_a_layer_beyond_the_model(write, refuse, tensors):
    tensors |= lora_pair("model.layers.7.self_attn.q_proj", 4, 72, 96)
    assert "layer 7 does not exist, the model has 0 to 1" in refuse(write())


def test_lora_on_the_head(write, refuse, tensors):
    tensors |= lora_pair("lm_head", 4, 72, 272)
    message = refuse(write(target_modules=[*_LEAVES, "lm_head"]))
    assert "lm_head.lora_B.weight: LoRA on lm_head is served where lora_target_modules names it; set" in message


def test_a_module_that_the_engine_does_not_adapt(write, refuse):
    message = refuse(write(), LoraConfig(lora_target_modules=["attn_q", "attn_v"]))
    assert "mlp.gate_proj.lora_B.weight: lora_target_modules=['attn_q', 'attn_v'] leaves gate_proj out" in message
    assert "add 'mlp_h_to_4h'" in message


@pytest.mark.parametrize("half", ["lora_A", "lora_B"])
def test_a_missing_half(write, refuse, tensors, half):
    other = {"lora_A": "lora_B", "lora_B": "lora_A"}[half]
    del tensors[f"{PREFIX}{_Q0}.{half}.weight"]
    assert f"{_Q0}: {half} is missing beside {PREFIX}{_Q0}.{other}.weight; save the adapter again" in refuse(write())


def test_a_shape_of_another_base(write, refuse, tensors):
    tensors[f"{PREFIX}{_Q0}.lora_A.weight"] = torch.ones(4, 80)
    tensors[f"{PREFIX}{_Q0}.lora_B.weight"] = torch.ones(72, 4)
    message = refuse(write(base_model_name_or_path="some/base"))
    assert "2 problems" in message
    assert f"tensor {PREFIX}{_Q0}.lora_A.weight: got [4, 80], wanted [4, 72]; " in message
    assert f"tensor {PREFIX}{_Q0}.lora_B.weight: got [72, 4], wanted [96, 4]; " in message
    assert "the adapter was trained on another base model (some/base); serve it on that one" in message


def test_transposed_matrices(write, refuse, tensors):
    for half in ("lora_A", "lora_B"):
        tensors[f"{PREFIX}{_Q0}.{half}.weight"] = tensors[f"{PREFIX}{_Q0}.{half}.weight"].t()
    assert "got [72, 4], wanted [4, 72]" in refuse(write())


def test_a_rank_that_the_configuration_does_not_give(write, refuse, tensors):
    tensors |= lora_pair(_Q1, 8, 72, 96)
    message = refuse(write())
    assert f"{_Q1}.lora_A.weight: got [8, 72], wanted [4, 72]; the configuration gives this module rank 4" in message
    assert f"{_Q1}.lora_B.weight: got [96, 8], wanted [96, 4]; the configuration gives this module rank 4" in message
    assert "correct r or rank_pattern" in message


def test_ranks_may_differ_by_module(write, read, tensors):
    tensors |= lora_pair(_Q1, 33, 72, 96) | lora_pair(_Q0, 1, 72, 96)
    weights = read(write(rank_pattern={"layers.1.self_attn.q_proj": 33, "q_proj": 1}))
    assert weights.modules[1, LoraModuleType.ATTENTION_Q].rank == 33
    assert weights.modules[0, LoraModuleType.ATTENTION_Q].rank == 1
    assert (weights.max_rank, weights.num_pages) == (33, 3)


def test_a_rank_above_the_limit(write, refuse):
    message = refuse(write(), LoraConfig(max_lora_rank=3))
    assert "6 problems" in message
    assert f"{_Q0}: rank 4 is above max_lora_rank=3; raise it in LoraConfig to 4" in message


@pytest.mark.parametrize("shape", [(0,), (0, 72), (4, 0)])
def test_an_empty_tensor(write, refuse, tensors, shape):
    tensors[f"{PREFIX}{_Q0}.lora_A.weight"] = torch.empty(shape)
    message = refuse(write())
    assert f"got {list(shape)}, wanted [4, 72]; it is empty: gather sharded weights (ZeRO-3, FSDP)" in message


@pytest.mark.parametrize("shape", [(4,), (1, 4, 72), ()])
def test_a_tensor_that_is_no_matrix(write, refuse, tensors, shape):
    tensors[f"{PREFIX}{_Q0}.lora_A.weight"] = torch.ones(shape)
    assert f"got {list(shape)}, wanted [4, 72]" in refuse(write())


def test_integers(write, refuse, tensors):
    tensors[f"{PREFIX}{_Q0}.lora_A.weight"] = torch.ones(4, 72, dtype=torch.int8)
    assert "lora_A.weight: dtype torch.int8 is not served; save it in a floating point type" in refuse(write())


def test_tensors_that_peft_would_drop(write, refuse):
    message = refuse(write(target_modules=["q_proj", "v_proj"]))
    assert "model.layers.0.mlp.gate_proj has tensors but adapter_config.json does not target it" in message
    assert "so PEFT would drop them; add it to target_modules or remove its tensors" in message
    assert "2 problems" in message
    assert "model.layers.1.self_attn.v_proj has tensors" in refuse(write(exclude_modules=["layers.1.self_attn.v_proj"]))
    assert "model.layers.1.mlp.gate_proj has tensors" in refuse(write(layers_to_transform=[0]))


def test_two_tensors_for_one_module(write, refuse, tensors):
    tensors[f"{_Q0}.lora_A.weight"] = torch.ones(4, 72)
    message = refuse(write())
    assert f"tensors {PREFIX}{_Q0}.lora_A.weight and {_Q0}.lora_A.weight are for the same module; keep one" in message


def test_two_adapters_in_one_file(write, refuse, tensors):
    tensors |= {key.replace(".weight", ".policy.weight"): tensor for key, tensor in lora_pair(_Q1, 4, 72, 96).items()}
    tensors |= {
        key.replace(".weight", ".reference.weight"): tensor for key, tensor in lora_pair(_Q0, 4, 72, 96).items()
    }
    assert "the file holds several adapters, policy, reference; save them one by one" in refuse(write())


def test_fused_and_split_tensors_for_one_site(write, refuse, tensors):
    tensors |= lora_pair("model.layers.0.self_attn.qkv_proj", 4, 72, 160)
    message = refuse(write(target_modules=[*_LEAVES, "qkv_proj"]))
    assert "both adapt model.layers.0.self_attn.q_proj; keep one" in message
    assert "both adapt model.layers.0.self_attn.v_proj; keep one" in message


def test_buffers_of_the_base_are_ignored_with_a_note(write, read, tensors, caplog):
    tensors["base_model.model.model.rotary_emb.inv_freq"] = torch.ones(8)
    assert len(read(write()).modules) == 6
    assert "adapter 'a1': ignored buffers of the base model: base_model.model.model.rotary_emb.inv_freq" in caplog.text


def test_a_file_of_buffers_alone(write, refuse, tensors):
    tensors.clear()
    tensors["rope_freqs.weight"] = torch.ones(8)
    assert "no tensor in the file is a lora_A or lora_B, so nothing would be applied" in refuse(write())


def test_an_adapter_for_another_architecture(write, refuse, tensors):
    tensors.clear()
    tensors |= lora_pair("transformer.h.0.attn.c_attn", 4, 72, 96)
    message = refuse(write(target_modules=["c_attn"]))
    assert "transformer.h.0.attn.c_attn.lora_A.weight" in message
    assert "no such module in this model" in message


def test_an_alpha_of_zero_is_zero_and_logged(write, read, caplog):
    weights = read(write(lora_alpha=0))
    assert {module.scale for module in weights.modules.values()} == {0.0}
    assert f"adapter 'a1': {_Q0} has lora_alpha 0 and adds nothing" in caplog.text


def test_problems_of_the_configuration_and_of_the_tensors_come_together(write, refuse, tensors):
    tensors[f"{PREFIX}lm_head.modules_to_save.weight"] = torch.ones(272, 72)
    tensors[f"{PREFIX}{_Q0}.lora_A.weight"] = torch.ones(4, 80)
    message = refuse(write(modules_to_save=["lm_head"]))
    assert "3 problems" in message
    assert "modules_to_save=['lm_head']: fully trained modules are not served" in message
    assert "lm_head.modules_to_save.weight: fully trained modules are not served" in message
    assert "got [4, 80], wanted [4, 72]" in message


def test_a_pattern_that_would_run_for_ever(write, refuse):
    message = refuse(write(target_modules=r"(?:.|\w)*j(?<!j)"))
    assert r"adapter_config.json: the pattern '(?:.|\\w)*j(?<!j)' takes too long to match names like" in message


def test_a_file_of_very_many_tensors(write, refuse, monkeypatch):
    monkeypatch.setattr(site_binder, "_MAX_TENSORS", 11)
    assert "the file holds 12 tensors, more than 11; this is no adapter" in refuse(write())


def test_another_programs_naming_is_named(write, refuse, tensors):
    tensors |= lora_pair("layers.0.attention.wq", 4, 72, 96, prefix="")
    message = refuse(write())
    assert "layers.0.attention.wq.lora_B.weight: this is Mistral's own naming; convert the adapter to PEFT" in message
