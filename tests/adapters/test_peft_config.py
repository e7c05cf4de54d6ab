"""Targets, ranks and scales equal those of PEFT itself, module by module."""

import json

import pytest
from peft import LoraConfig as PeftLoraConfig

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.peft_config import PeftConfig
from tensorrt_lora.adapters.peft_config_parser import PeftConfigParser
from tests.support.tiny_adapters import make_peft_model, peft_layers
from tests.support.tiny_models import make_tiny_model

_ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_CONFIGS = {
    "list": {"target_modules": ["q_proj", "v_proj"]},
    "dotted names": {"target_modules": ["self_attn.q_proj", "mlp.gate_proj"]},
    "whole names": {"target_modules": ["model.layers.1.self_attn.k_proj", "model.layers.10.mlp.up_proj"]},
    "regex": {"target_modules": r".*\.layers\.(1|3)\..*\.(q|o|up)_proj"},
    "all-linear": {"target_modules": "all-linear"},
    "all-linear in capitals": {"target_modules": "ALL-LINEAR"},
    "excluded list": {"target_modules": _ALL, "exclude_modules": ["layers.1.mlp.up_proj", "k_proj"]},
    "excluded regex": {"target_modules": "all-linear", "exclude_modules": r".*layers\.[02]\..*|lm_head"},
    "layers": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0, 10]},
    "one layer": {"target_modules": ["q_proj"], "layers_to_transform": 1},
    "no layers": {"target_modules": ["q_proj"], "layers_to_transform": []},
    "layers by pattern": {"target_modules": _ALL, "layers_to_transform": [2], "layers_pattern": "layers"},
    "layers by patterns": {
        "target_modules": _ALL,
        "layers_to_transform": [2, 11],
        "layers_pattern": ["blocks", "layers"],
    },
    # "model" alone matches, without an index: PEFT looks no further and adapts nothing by it.
    "layers by an alternative": {
        "target_modules": ["model.layers.3.self_attn.k_proj", "v_proj"],
        "layers_to_transform": [0, 1],
        "layers_pattern": "model|layers",
    },
    "layers by an alternative that reaches the index": {
        "target_modules": _ALL,
        "layers_to_transform": [0, 1],
        "layers_pattern": "blocks|model.layers",
    },
    "a whole name beside layers": {
        "target_modules": ["model.layers.0.self_attn.q_proj", "v_proj"],
        "layers_to_transform": [1],
    },
    "rank pattern": {"target_modules": _ALL, "rank_pattern": {"q_proj": 3, "layers.1.mlp.up_proj": 16}},
    "alpha pattern": {
        "target_modules": _ALL,
        "alpha_pattern": {"o_proj": 5, "model.layers.2.mlp.up_proj": 7},
    },
    "patterns that overlap": {
        "target_modules": _ALL,
        "rank_pattern": {"layers.1.self_attn.q_proj": 2, "q_proj": 4, r"layers.\d+.self_attn.[qk]_proj": 6},
        "alpha_pattern": {"^model.layers.1.*": 3, "proj": 100, r".*_proj": 9},
    },
    # PEFT anchors the end of a pattern only, so "1.mlp.up_proj" needs a dot before it: layer 1, not layer 11.
    "pattern of a number": {"target_modules": _ALL, "rank_pattern": {"1.mlp.up_proj": 5}},
    "rslora": {"target_modules": _ALL, "r": 16, "lora_alpha": 32, "use_rslora": True},
    "rslora with patterns": {
        "target_modules": _ALL,
        "lora_alpha": 8,
        "use_rslora": True,
        "rank_pattern": {"q_proj": 2, "k_proj": 16},
        "alpha_pattern": {"v_proj": 24},
    },
    "fractional alpha": {"target_modules": ["q_proj"], "r": 3, "lora_alpha": 0.7},
    "alpha zero": {"target_modules": ["q_proj"], "lora_alpha": 0},
}


def _parse(raw: dict[str, object]) -> PeftConfig:
    return PeftConfigParser(raw, AdapterProblems("a1", "/a1")).parse()


@pytest.fixture(scope="module")
def twelve_layers():
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    return make_tiny_model("qwen3_untied", overrides={**small, "head_dim": 8, "num_hidden_layers": 12})


@pytest.mark.parametrize("fields", _CONFIGS.values(), ids=_CONFIGS)
def test_targets_ranks_and_scales_equal_pefts(fields, twelve_layers, tmp_path):
    PeftLoraConfig(task_type="CAUSAL_LM", **{"r": 4, "lora_alpha": 6, **fields}).save_pretrained(tmp_path)
    config = _parse(json.loads((tmp_path / "adapter_config.json").read_text()))
    # Read back by PEFT too: it writes patterns sorted, and their order decides which one wins.
    layers = peft_layers(make_peft_model(twelve_layers, PeftLoraConfig.from_pretrained(tmp_path)))
    assert layers
    # PEFT refuses to adapt any other kind of module by these patterns, so leaves are all there is to compare.
    names = [name for name, module in twelve_layers.named_modules() if not list(module.children())]
    assert {name for name in names if name.endswith(("_proj", "lm_head")) and config.targets(name)} == set(layers)
    for name, layer in layers.items():
        assert config.rank_of(name) == layer.r["default"], name
        assert config.scale_of(name) == layer.scaling["default"], name


def test_a_missing_alpha_and_rank_are_pefts_defaults():
    config = _parse({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]})
    assert config.scale_of("model.layers.0.self_attn.q_proj") == 4.0
    assert _parse({"peft_type": "LORA", "target_modules": ["q_proj"]}).rank_of("q_proj") == PeftLoraConfig().r


@pytest.mark.parametrize(("alpha", "rank", "scale"), [(8, 2, 5.656854249492381), (8, 16, 2.0), (32, 16, 8.0)])
def test_rslora_divides_by_the_square_root(alpha, rank, scale):
    config = PeftConfig(r=rank, lora_alpha=alpha, use_rslora=True, target_modules=("q_proj",))
    assert config.scale_of("q_proj") == pytest.approx(scale, rel=1e-15)


def test_unused_targets_are_those_that_match_no_module():
    config = PeftConfig(target_modules=("q_proj", "w1", "mlp.up_proj"))
    assert config.unused_targets({"model.layers.0.self_attn.q_proj", "up_proj"}) == ["w1", "mlp.up_proj"]
    assert PeftConfig(target_modules=".*q_proj").unused_targets(set()) == []
