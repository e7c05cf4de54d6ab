"""What users reported about adapter files, each as a small input with the right answer.

Those about running engines are in `tests/integration/test_field_reports.py`, with the list of what is left out and why.
"""

import json
import socket

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from safetensors.torch import save_file

from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.module_types import LoraModuleType
from tests.support.field_report import report
from tests.support.tiny_adapters import (
    PREFIX,
    config_fields,
    find_parameters,
    find_sites,
    lora_pair,
    random_tensors,
    save_peft_adapter,
    write_adapter,
)
from tests.support.tiny_models import make_tiny_model

_Q0, _NORM = "model.layers.0.self_attn.q_proj", f"{PREFIX}model.layers.0.input_layernorm.weight"
_Q = (0, LoraModuleType.ATTENTION_Q)
_VOCABULARY = LoraConfig(lora_target_modules=["attn_qkv", "embed_tokens", "lm_head"])


@pytest.fixture
def write(sites, tmp_path):
    """Write rank 4 pairs on `leaves` after `edit` has had the tensors; each call gives another directory."""

    def write(*leaves, edit=lambda tensors: None, rank=4, targets=None, name="a", **fields):
        tensors = random_tensors(sites, leaves, rank)
        edit(tensors)
        directory = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}"
        return write_adapter(directory, tensors, config_fields(rank, targets or list(leaves), **fields))

    return write


def _respell(spell):
    def edit(tensors):
        for key in list(tensors):
            tensors[spell(key)] = tensors.pop(key)

    return edit


def _adding(more):
    return lambda tensors: tensors.update(more)


def _assert_same(one, other):
    assert one.modules.keys() == other.modules.keys()
    for key, module in one.modules.items():
        assert torch.equal(module.a, other.modules[key].a) and torch.equal(module.b, other.modules[key].b)


# Names of tensors


@report("vllm-45716", "vllm-34186", "trtllm-4696")
def test_one_file_binds_to_the_text_model_and_to_a_wrapper_around_it(write, read, sites):
    wrapped = {name.replace("model.", "model.language_model.", 1): site for name, site in sites.items()}
    directory = write("q_proj", "up_proj")
    _assert_same(read(directory), read(directory, of=wrapped))
    assert len(read(directory).modules) == 4


@report("swift-5252")
def test_a_wrappers_names_on_the_output_projection_alone(write, read):
    spell = _respell(lambda key: key.removeprefix(PREFIX).replace("model.layers", "language_model.model.layers"))
    assert len(read(write("o_proj", edit=spell)).modules) == 2


@report("swift-4725")
def test_two_spellings_are_one_adapter_and_the_log_counts_what_was_bound(write, read, caplog):
    spell = _respell(lambda key: key.replace("model.layers", "model.language_model.layers"))
    with caplog.at_level("INFO"):
        _assert_same(read(write("q_proj", "v_proj")), read(write("q_proj", "v_proj", edit=spell)))
    assert caplog.text.count("bound 4 of 14 modules") == 2


@report("swift-414")
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("inside", [".", ".default."])
def test_the_adapters_name_inside_and_a_missing_prefix(write, read, prefix, inside):
    spell = _respell(lambda key: key.removeprefix("" if prefix else PREFIX).replace(".weight", f"{inside}weight"))
    _assert_same(read(write("q_proj", "v_proj")), read(write("q_proj", "v_proj", edit=spell)))


@report("axolotl-3166")
def test_a_wrapper_in_the_attentions_names_alone_is_not_half_an_adapter(write, read):
    spell = _respell(lambda key: key.replace(".self_attn.", "._checkpoint_wrapped_module.self_attn."))
    leaves = ("q_proj", "v_proj", "gate_proj")
    _assert_same(read(write(*leaves)), read(write(*leaves, edit=spell)))


@report("llamacpp-10551")
def test_mlx_is_named(write, refuse):
    def edit(tensors):
        for key in list(tensors):
            tensors[key.removeprefix(PREFIX).replace("lora_A.weight", "lora_a").replace("lora_B.weight", "lora_b")] = (
                tensors.pop(key).t()
            )

    assert "lora_b: this is MLX's naming, its matrices are transposed; convert" in refuse(write("q_proj", edit=edit))


@report("lorax-546", "vllm-6573")
def test_every_unknown_key_is_listed_at_once(write, refuse):
    native = "layers.0.attention.wq.lora_A.weight"
    message = refuse(write("q_proj", edit=_adding({_NORM: torch.ones(72), native: torch.ones(4, 72)})))
    assert f"{_NORM}: trained norms are not served" in message
    assert f"{native}: this is Mistral's own naming" in message


@report("torchtune-2537")
def test_torchtunes_own_names_are_named(write, refuse):
    names = ("layers.0.attn.q_proj.lora_a.weight", "layers.0.mlp.w1.lora_a.weight")

    def edit(tensors):
        tensors.clear()
        tensors.update({name: torch.ones(4, 72) for name in names})

    assert "this is torchtune's naming; convert the adapter to PEFT" in refuse(write("q_proj", edit=edit))


@report("tinker-cookbook-593")
def test_another_name_of_the_head_is_known(write, refuse):
    edit = _adding(lora_pair("model.unembed_tokens", 4, 72, 272))
    assert "this is another name for lm_head; rename it" in refuse(write("q_proj", edit=edit))


@report("llamacpp-9114")
def test_buffers_are_ignored_with_a_line_in_the_log_and_nothing_else_is(write, read, refuse, caplog):
    buffer = _adding({"model.rotary_emb.inv_freq": torch.ones(8)})
    assert len(read(write("q_proj", edit=buffer)).modules) == 2
    assert "ignored buffers of the base model: model.rotary_emb.inv_freq" in caplog.text
    stray = _adding({"foo.weight": torch.ones(8)})
    assert "tensor foo.weight: this is no LoRA tensor" in refuse(write("q_proj", edit=stray))


# Files


@report("trtllm-11237")
@pytest.mark.parametrize("kept", ["safetensors", "bin", "both"])
def test_the_reader_goes_by_the_files_type_and_safetensors_win(write, read, sites, kept):
    directory = write("q_proj")
    expected = read(directory)
    tensors = random_tensors(sites, ("q_proj",), 4)
    if kept != "safetensors":
        times = 5 if kept == "both" else 1
        torch.save({key: tensor * times for key, tensor in tensors.items()}, directory / "adapter_model.bin")
    if kept == "bin":
        (directory / "adapter_model.safetensors").unlink()
    _assert_same(read(directory), expected)


@report("trl-4416", "peft-2892", "vllm-55193")
def test_a_valid_file_without_tensors(write, refuse):
    directory = write("q_proj")
    save_file({}, directory / "adapter_model.safetensors")
    assert "the weight file holds 0 tensors; if it was saved from a sharded model (ZeRO-3" in refuse(directory)


@report("peft-2450", "peft-2500", "safetensors-498")
def test_tensors_that_were_not_gathered(write, refuse):
    def edit(tensors):
        tensors[f"{PREFIX}{_Q0}.lora_A.weight"] = torch.empty(0)

    message = refuse(write("q_proj", "v_proj", edit=edit))
    assert f"tensor {PREFIX}{_Q0}.lora_A.weight: got [0], wanted [4, 72]; it is empty: gather sharded" in message


@report("vllm-18372")
def test_a_path_that_does_not_exist(refuse, tmp_path):
    assert "the path does not exist" in refuse(tmp_path / "gone")


@report("trtbe-791", "trtllm-2434", "trtllm-1910", "sglang-3713")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("served", [torch.float32, torch.bfloat16])
def test_any_float_type_is_cast_to_the_models(write, read, sites, dtype, served):
    def edit(tensors):
        for key, tensor in tensors.items():
            tensors[key] = tensor.to(dtype)

    module = read(write("q_proj", edit=edit), dtype=served).modules[_Q]
    stored = random_tensors(sites, ("q_proj",), 4)[f"{PREFIX}{_Q0}.lora_A.weight"].to(dtype)
    assert module.a.dtype == served and torch.equal(module.a, stored.to(served))


# Configuration


@report("vllm-7441")
def test_a_classifier_is_refused_with_its_task_and_its_head(write, refuse):
    edit = _adding({f"{PREFIX}score.weight": torch.ones(2, 72)})
    message = refuse(write("q_proj", edit=edit, task_type="SEQ_CLS"))
    assert "task_type='SEQ_CLS'" in message and "score.weight: fully trained modules are not served" in message


@report("llamafactory-7997", "llamafactory-3125", "vllm-2816", "vllm-9280")
def test_added_tokens_are_refused_with_both_shapes(write, refuse, model):
    keys = [f"{PREFIX}model.embed_tokens.weight", f"{PREFIX}lm_head.weight"]
    edit = _adding({key: torch.ones(275, 72) for key in keys})
    directory = write("q_proj", edit=edit, modules_to_save=["lm_head", "embed_tokens"])
    message = refuse(directory, parameters=find_parameters(model))
    assert "modules_to_save=['lm_head', 'embed_tokens']" in message
    for key in keys:
        assert f"tensor {key}: got [275, 72], the model's" in message
    assert message.count("is [272, 72]; the vocabulary was changed") == 2


@report("peft-2898")
@pytest.mark.parametrize("indices", [[5, 9], [270]])
def test_trained_tokens_are_refused_by_field(write, refuse, indices):
    delta = f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta"
    edit = _adding({delta: torch.ones(len(indices), 72)})
    message = refuse(write("q_proj", edit=edit, trainable_token_indices=indices))
    assert f"trainable_token_indices={indices}" in message and f"tensor {delta}: trained token embeddings" in message


@report("peft-2864", "peft-2863")
def test_trained_tokens_by_module_are_refused_too(write, refuse):
    indices = {"embed_tokens": [5, 9], "lm_head": [7]}
    assert f"trainable_token_indices={indices}" in refuse(write("q_proj", trainable_token_indices=indices))


@report("peft-1979")
def test_unknown_fields_are_ignored_while_they_ask_for_nothing(write, read, refuse):
    for value in (None, False, "", [], {}):
        assert len(read(write("q_proj", some_future_field=value)).modules) == 2
    message = refuse(write("q_proj", some_future_field={"a": 1}))
    assert "some_future_field={'a': 1}: unknown field" in message


@report("peft-1707")
def test_replicated_and_additional_layers(write, refuse):
    assert "layer_replication=[[0, 2], [1, 2]]" in refuse(write("q_proj", layer_replication=[[0, 2], [1, 2]]))
    edit = _adding(lora_pair("model.layers.7.self_attn.q_proj", 4, 72, 96))
    assert "layer 7 does not exist, the model has 0 to 1" in refuse(write("q_proj", edit=edit))


@report("sglang-11034")
def test_targets_with_their_parents_name(write, read):
    weights = read(write("q_proj", "gate_proj", targets=["self_attn.q_proj", "mlp.gate_proj"]))
    assert len(weights.modules) == 4


@report("sglang-9429")
def test_what_the_engine_does_not_adapt_is_listed_when_the_adapter_is_loaded(write, refuse):
    message = refuse(write("q_proj", "down_proj"), LoraConfig(lora_target_modules=["attn_q"]))
    for layer in (0, 1):
        assert f"layers.{layer}.mlp.down_proj.lora_B.weight: lora_target_modules=['attn_q'] leaves down_proj" in message


@report("d1-6", "sglang-21864")
def test_targets_and_tensors_that_disagree(write, read, refuse, caplog):
    leaves = ("q_proj", "v_proj", "gate_proj")
    message = refuse(write(*leaves, targets=["q_proj", "v_proj"]))
    assert "gate_proj has tensors but adapter_config.json does not target it" in message
    assert len(read(write(*leaves, targets=[*leaves, "o_proj"])).modules) == 6
    assert "target_modules without any tensor: o_proj" in caplog.text
    for targets in (r".*\.(q|v|gate)_proj", "all-linear"):
        assert len(read(write(*leaves, targets=targets)).modules) == 6


@report("sglang-28199")
@pytest.mark.parametrize("dropped", ["1.self_attn.v_proj", "1.self_attn.k_proj", "0.mlp.up_proj", "0.mlp.gate_proj"])
def test_any_part_of_a_fused_group_may_be_absent(write, read, dropped):
    def edit(tensors):
        for key in [key for key in tensors if dropped in key]:
            del tensors[key]

    weights = read(write("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", edit=edit))
    assert len(weights.modules) == 9


@report("axolotl-3673", "trtllm-2366", "trtllm-2389")
@pytest.mark.parametrize(("use_rslora", "scales"), [(False, (4.0, 2.0)), (True, (128 / 32**0.5, 16 / 8**0.5))])
def test_ranks_and_alphas_by_layer(read, tmp_path, use_rslora, scales):
    model = make_tiny_model("qwen3", overrides={"num_hidden_layers": 4})
    pattern = r"layers\.3\.self_attn\..*"
    fields = {"r": 8, "lora_alpha": 16, "rank_pattern": {pattern: 32}, "alpha_pattern": {pattern: 128}}
    config = PeftLoraConfig(target_modules=["q_proj", "up_proj"], use_rslora=use_rslora, **fields)
    weights = read(save_peft_adapter(tmp_path, model, config), of=find_sites(model))
    for (layer, module_type), module in weights.modules.items():
        special = layer == 3 and module_type is LoraModuleType.ATTENTION_Q
        assert (module.rank, module.scale) == ((32, scales[0]) if special else (8, pytest.approx(scales[1])))


@report("lorax-700", "trtllm-1668", "vllm-10798", "trtllm-2022")
def test_rslora_divides_by_the_square_root(write, read):
    assert read(write("q_proj", rank=16, lora_alpha=32, use_rslora=True)).modules[_Q].scale == 8.0


@report("surogate-173")
def test_a_missing_alpha_is_eight_and_an_explicit_zero_is_zero(write, read):
    directory = write("q_proj", rank=2)
    path = directory / "adapter_config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in fields.items() if key != "lora_alpha"}))
    assert read(directory).modules[_Q].scale == 4.0
    assert read(write("q_proj", rank=2, lora_alpha=0)).modules[_Q].scale == 0.0


@report("llamadart-321")
def test_an_activated_lora_is_refused_by_field(write, refuse):
    message = refuse(write("q_proj", alora_invocation_tokens=[7, 8]))
    assert "alora_invocation_tokens=[7, 8]: activated LoRA (aLoRA) is not served" in message


@report("peft-2710", "vllm-41384", "vllm-40005", "trtllm-14801")
def test_lora_on_bare_parameters_is_refused_by_field(write, refuse):
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    assert "LoRA on bare parameters (MoE experts) is not served" in refuse(write("q_proj", target_parameters=targets))


@report("lorax-311", "lorax-430")
@pytest.mark.parametrize("base", ["no/such", None, ""])
def test_the_bases_name_is_advice_and_needs_no_network(write, read, monkeypatch, base):
    monkeypatch.setattr(socket, "socket", None)
    assert len(read(write("q_proj", base_model_name_or_path=base)).modules) == 2


# More than pairs


@report("sglang-22125", "vllm-6983", "vllm-8945", "vllm-10849", "trtllm-2132")
def test_dora_is_whole_or_refused(write, read, refuse):
    def edit(tensors):
        for layer in (0, 1):
            tensors[f"{PREFIX}model.layers.{layer}.self_attn.q_proj.lora_magnitude_vector"] = torch.ones(96)

    module = read(write("q_proj", rank=64, lora_alpha=16, edit=edit, use_dora=True, use_rslora=True)).modules[_Q]
    assert (module.scale, module.magnitude.shape) == (2.0, (96,))
    assert "use_dora=true, but modules have no lora_magnitude_vector" in refuse(write("q_proj", use_dora=True))
    assert "use_dora=false, but the file holds lora_magnitude_vector" in refuse(write("q_proj", edit=edit))


@report("peft-3306")
@pytest.mark.parametrize(("bias", "biased"), [("lora_only", {"q_proj"}), ("all", {"q_proj", "k_proj", "v_proj"})])
def test_trained_biases_of_the_base_are_the_adapters_own(read, tmp_path, bias, biased):
    model = make_tiny_model("qwen2")
    config = PeftLoraConfig(target_modules=["q_proj"], bias=bias)
    sites = find_sites(model)
    weights = read(save_peft_adapter(tmp_path, model, config), of=sites, parameters=find_parameters(model))
    bound = {name: weights.modules.get((site.layer_idx, site.module_type)) for name, site in sites.items()}
    trained = {name: module.base_bias for name, module in bound.items() if module and module.base_bias is not None}
    assert set(trained) == {name for name in sites if name.rpartition(".")[2] in biased}
    for name, bias in trained.items():
        assert (bias - model.get_submodule(name).bias).abs().max() > 0.1


@report("vllm-5733")
def test_the_bias_of_lora_b_is_scaled_like_b(write, read):
    def edit(tensors):
        for layer in (0, 1):
            module = f"{PREFIX}model.layers.{layer}.self_attn.q_proj"
            tensors[f"{module}.lora_B.weight"].zero_()
            tensors[f"{module}.lora_B.bias"] = torch.ones(96)

    module = read(write("q_proj", edit=edit, lora_bias=True, lora_alpha=16)).modules[_Q]
    assert torch.equal(module.bias, torch.full((96,), 4.0))
    assert read(write("q_proj")).modules[_Q].bias is None


@report("sglang-18634", "sglang-16215", "peft-2018")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("fields", "adapted"),
    [
        ({"target_modules": ["lm_head"]}, {LoraModuleType.LM_HEAD}),
        ({"target_modules": ["embed_tokens"]}, {LoraModuleType.EMBED_TOKENS}),
        (
            {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
            {LoraModuleType.LM_HEAD, LoraModuleType.EMBED_TOKENS},
        ),
    ],
)
def test_the_head_of_a_tied_model_is_a_module_of_its_own(read, model, tmp_path, fields, adapted):
    directory = save_peft_adapter(tmp_path, model, PeftLoraConfig(task_type="CAUSAL_LM", r=2, **fields))
    sites = find_sites(model, with_vocabulary=True)
    weights = read(directory, _VOCABULARY, of=sites, parameters=find_parameters(model))
    assert {module_type for _, module_type in weights.modules} == adapted


@report("unsloth-9326")
def test_two_trained_copies_of_a_tied_weight_are_refused_and_neither_is_taken_for_both(write, refuse, model):
    weight = find_parameters(model)["lm_head.weight"]
    copies = {f"{PREFIX}model.embed_tokens.weight": weight, f"{PREFIX}lm_head.weight": weight + 1}
    directory = write("q_proj", edit=_adding(copies), modules_to_save=["lm_head", "embed_tokens"])
    message = refuse(directory, parameters=find_parameters(model))
    assert "modules_to_save=" in message and "lm_head.weight: holds other values than the model's lm_head" in message


@report("sglang-7271", "trtllm-2283")
def test_widths_come_from_the_live_modules_not_from_the_hidden_size(write, read):
    weights = read(write("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))
    widths = {key[1]: (module.a.shape[1], module.b.shape[1]) for key, module in weights.modules.items()}
    assert widths[LoraModuleType.ATTENTION_Q] == (72, 96) and widths[LoraModuleType.ATTENTION_DENSE] == (96, 72)
    assert widths[LoraModuleType.ATTENTION_K] == widths[LoraModuleType.ATTENTION_V] == (72, 32)


@report("vllm-2847", "vllm-10623", "vllm-49327", "lorax-70", "lorax-241", "lorax-78")
@pytest.mark.parametrize("rank", [1, 3, 7, 12, 17, 64, 100])
def test_any_rank_up_to_the_limit(write, read, refuse, rank):
    directory = write("q_proj", rank=rank)
    assert read(directory, LoraConfig(max_lora_rank=rank)).max_rank == rank
    if rank > 1:
        assert f"rank {rank} is above max_lora_rank={rank - 1}" in refuse(directory, LoraConfig(max_lora_rank=rank - 1))
