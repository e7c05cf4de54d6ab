"""From what PEFT saves to what the slots take: every module, matrix and scale equals PEFT's own."""

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model

from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.module_types import LoraModuleType
from tests.support.module_oracle import apply_module
from tests.support.tiny_adapters import (
    PREFIX,
    config_fields,
    find_parameters,
    find_sites,
    peft_layers,
    random_tensors,
    save_peft_adapter,
    write_adapter,
)
from tests.support.tiny_models import make_tiny_model

_CONFIGS = {
    "attention": {"r": 1, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    "rslora and patterns": {
        "r": 8,
        "lora_alpha": 12,
        "use_rslora": True,
        "target_modules": ["q_proj", "up_proj", "down_proj"],
        "rank_pattern": {"layers.0.self_attn.q_proj": 17},
        "alpha_pattern": {"up_proj": 3},
    },
    "regex": {"r": 3, "target_modules": r".*\.1\..*(down|v)_proj"},
    "all-linear": {"r": 64, "lora_alpha": 16, "target_modules": "all-linear", "exclude_modules": ["k_proj"]},
    "one layer": {
        "r": 5,
        "target_modules": ["q_proj"],
        "layers_to_transform": [1],
        "layers_pattern": "layers",
    },
}


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "arcee"])
@pytest.mark.parametrize("name", _CONFIGS)
def test_modules_matrices_and_scales_equal_pefts(family, name, read, tmp_path):
    model = make_tiny_model(family)
    sites = find_sites(model)
    config = PeftLoraConfig(task_type="CAUSAL_LM", **_CONFIGS[name])
    weights = read(save_peft_adapter(tmp_path, model, config), of=sites)
    layers = peft_layers(PeftModel.from_pretrained(model, tmp_path))
    assert {(sites[name].layer_idx, sites[name].module_type) for name in layers} == set(weights.modules)
    for name, layer in layers.items():
        module = weights.modules[sites[name].layer_idx, sites[name].module_type]
        assert torch.equal(module.a, layer.lora_A["default"].weight)
        assert torch.equal(module.b, layer.lora_B["default"].weight.t())
        assert module.b.abs().max() > 0.01
        assert module.scale == layer.scaling["default"]
        x = torch.randn(3, module.a.shape[1])
        ours = module.scale * (x @ module.a.t()) @ module.b
        theirs = layer(x) - layer.base_layer(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


_FEATURES = {
    "dora": ({"target_modules": ["q_proj", "k_proj", "down_proj"], "use_dora": True}, "qwen2"),
    "dora, rslora, patterns": (
        {"target_modules": "all-linear", "use_dora": True, "use_rslora": True, "rank_pattern": {"k_proj": 2}},
        "llama_tied_bias",
    ),
    "dora and base biases": (
        {"target_modules": ["v_proj", "o_proj"], "use_dora": True, "bias": "all"},
        "llama_tied_bias",
    ),
    "bias of lora_B": ({"target_modules": ["q_proj", "up_proj"], "lora_bias": True, "lora_alpha": 12}, "qwen2"),
    "bias of lora_B without a base bias": ({"target_modules": ["q_proj", "gate_proj"], "lora_bias": True}, "qwen3"),
    "base biases of targets": ({"target_modules": ["q_proj", "k_proj"], "bias": "lora_only"}, "qwen2"),
    "all base biases": ({"target_modules": ["q_proj", "up_proj"], "bias": "all"}, "llama_tied_bias"),
    "both kinds of bias": ({"target_modules": ["q_proj"], "lora_bias": True, "bias": "lora_only"}, "qwen2"),
    "embedding, tied": ({"target_modules": ["embed_tokens", "q_proj"]}, "qwen3"),
    "head, tied": ({"target_modules": ["lm_head", "v_proj"]}, "qwen3"),
    "embedding and head, tied": ({"target_modules": ["embed_tokens", "lm_head"]}, "qwen3"),
    "embedding and head, untied": ({"target_modules": ["embed_tokens", "lm_head"], "lora_alpha": 5}, "qwen3_untied"),
    "embedding, tying kept": ({"target_modules": ["embed_tokens"], "ensure_weight_tying": True}, "qwen3"),
    "head, tying kept": ({"target_modules": ["lm_head", "q_proj"], "ensure_weight_tying": True}, "qwen3"),
    "dora on the embedding and the head": ({"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}, "qwen3"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # PEFT warns of tied weights, saved embeddings, and biases on layers without
@pytest.mark.parametrize("name", _FEATURES)
def test_what_a_module_computes_equals_pefts(name, read, tmp_path):
    fields, family = _FEATURES[name]
    sites = find_sites(make_tiny_model(family), with_vocabulary=True)
    base = make_tiny_model(family)
    save_peft_adapter(tmp_path, base, PeftLoraConfig(task_type="CAUSAL_LM", r=4, **fields), seed=3)
    targets = LoraConfig(lora_target_modules=sorted({site.module_type.config_name for site in sites.values()}))
    weights = read(tmp_path, targets, of=sites, parameters=find_parameters(base))
    peft_model = PeftModel.from_pretrained(make_tiny_model(family), tmp_path).eval()
    layers = peft_layers(peft_model)
    bound = {site.hf_name: weights.modules.get((site.layer_idx, site.module_type)) for site in sites.values()}
    assert {hf_name for hf_name, module in bound.items() if module is not None and module.rank} == set(layers)
    for hf_name, module in bound.items():
        if module is None:
            continue
        site, base_layer = sites[hf_name], base.get_submodule(hf_name)
        x = torch.arange(20) if hf_name.endswith("embed_tokens") else torch.randn(5, site.in_features)
        theirs = peft_model.base_model.model.get_submodule(hf_name)(x)
        torch.testing.assert_close(apply_module(module, base_layer, x), theirs, rtol=1e-5, atol=2e-5)
        assert (theirs - base_layer(x)).abs().max() > 0.05, hf_name
    features = {
        "use_dora": any(module.magnitude is not None for module in weights.modules.values()),
        "lora_bias": any(module.bias is not None for module in weights.modules.values()),
        "bias": any(module.base_bias is not None for module in weights.modules.values()),
    }
    assert features == {feature: feature in fields for feature in features}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_a_start_that_changes_the_base_is_served_once_peft_has_converted_it(start, read, refuse, tmp_path):
    """PEFT's recipe: save the start, train, save with the start's path. It makes a plain LoRA of twice the rank."""
    config = PeftLoraConfig(r=3, target_modules=["q_proj", "down_proj"], init_lora_weights=start, lora_alpha=6)
    peft_model = get_peft_model(make_tiny_model("qwen3"), config).eval()
    peft_model.peft_config["default"].init_lora_weights = True
    peft_model.save_pretrained(tmp_path / "start")
    peft_model.peft_config["default"].init_lora_weights = start
    with torch.no_grad():
        for layer in peft_layers(peft_model).values():
            for half in (layer.lora_A, layer.lora_B):
                half["default"].weight.add_(torch.randn_like(half["default"].weight), alpha=0.2)
    peft_model.save_pretrained(tmp_path / "mutated")
    peft_model.save_pretrained(tmp_path / "converted", path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    assert f"init_lora_weights='{start}': this start changes the base weights" in refuse(tmp_path / "mutated")
    weights = read(tmp_path / "converted")
    assert {module.rank for module in weights.modules.values()} == {6}
    base = make_tiny_model("qwen3")
    for hf_name, layer in peft_layers(peft_model).items():
        site = find_sites(base)[hf_name]
        x = torch.randn(5, site.in_features)
        ours = apply_module(weights.modules[site.layer_idx, site.module_type], base.get_submodule(hf_name), x)
        torch.testing.assert_close(ours, layer(x), rtol=1e-4, atol=1e-4)
        assert (ours - base.get_submodule(hf_name)(x)).abs().max() > 0.05


def _spell(key: str, spelling: str) -> str:
    return {
        "plain": key,
        "default inside": key.replace(".weight", ".default.weight"),
        "no prefix": key.removeprefix(PREFIX),
        "neither": key.removeprefix(PREFIX).replace(".weight", ".default.weight"),
        "compiled": f"_orig_mod.{key}",
        # Only the attention was wrapped in training: reading half of the adapter would be the worst outcome.
        "attention wrapped": key.replace(".self_attn.", "._checkpoint_wrapped_module.self_attn."),
        "multimodal": key.replace("model.layers", "language_model.model.layers"),
        "new multimodal": key.replace("model.layers", "model.language_model.layers"),
        "bare model": key.replace("model.layers", "layers"),
    }[spelling]


@pytest.mark.parametrize(
    "spelling",
    [
        "plain",
        "default inside",
        "no prefix",
        "neither",
        "compiled",
        "attention wrapped",
        "multimodal",
        "new multimodal",
        "bare model",
    ],
)
def test_every_spelling_of_names_gives_the_same_weights(spelling, read, sites, tmp_path, caplog):
    tensors = random_tensors(sites, ("q_proj", "v_proj", "gate_proj"), 4)
    fields = config_fields(4, ["q_proj", "v_proj", "gate_proj"], alpha_pattern={"layers.1.mlp.gate_proj": 20})
    expected = read(write_adapter(tmp_path / "plain", tensors, fields))
    assert "another spelling" not in caplog.text
    respelled = {_spell(key, spelling): tensor for key, tensor in tensors.items()}
    weights = read(write_adapter(tmp_path / "a1", respelled, fields))
    assert weights.modules.keys() == expected.modules.keys()
    for key, module in weights.modules.items():
        assert torch.equal(module.a, expected.modules[key].a) and torch.equal(module.b, expected.modules[key].b)
        assert module.scale == expected.modules[key].scale
    assert weights.modules[1, LoraModuleType.MLP_H_TO_4H].scale == 5.0
    renamed = {"plain": 0, "attention wrapped": 8}.get(spelling, 12)
    if renamed:
        assert f"adapter 'a1': read {renamed} names in another spelling than PEFT's, like " in caplog.text


def test_the_log_says_what_was_bound(read, sites, tmp_path, caplog):
    tensors = random_tensors(sites, ("q_proj",), 4)
    with caplog.at_level("INFO"):
        weights = read(write_adapter(tmp_path, tensors, config_fields(4, ["q_proj"])))
    summary = f"bound 2 of 14 modules, 4 tensors, rank 4, float32, version {weights.version[:8]}"
    assert f"adapter 'a1': {summary}" in caplog.text


def test_configuration_and_version_come_with_the_weights(read, sites, tmp_path):
    tensors = random_tensors(sites, ("q_proj",), 4)
    one = read(write_adapter(tmp_path / "one", tensors, config_fields(4, ["q_proj"])))
    two = read(write_adapter(tmp_path / "two", tensors, config_fields(4, ["q_proj"], lora_alpha=1)))
    assert one.name == "a1"
    assert one.version != two.version
    assert two.modules[0, LoraModuleType.ATTENTION_Q].scale == 0.25
