"""From what PEFT saves to what the slots take: every module, matrix and scale equals PEFT's own."""

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel

from tensorrt_lora.lora.module_types import LoraModuleType
from tests.support.tiny_adapters import (
    PREFIX,
    config_fields,
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
