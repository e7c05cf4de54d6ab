import dataclasses
import json

import pytest
from peft import LoraConfig as PeftLoraConfig

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterProblems
from tensorrt_lora.adapters.peft_features import check_features, shorten
from tests.support.tiny_adapters import config_fields

_REFUSED = {
    "peft_type": ("ADALORA", "peft_type='ADALORA': only LORA adapters are served"),
    "task_type": ("SEQ_CLS", "task_type='SEQ_CLS': only causal language models are served"),
    "init_lora_weights": ("pissa", "init_lora_weights='pissa': this start changes the base weights"),
    "use_qalora": (True, "use_qalora=True: QALoRA is not served"),
    "use_bdlora": ({"nblocks": 2}, "use_bdlora={'nblocks': 2}: block-diagonal LoRA is not served"),
    "modules_to_save": (["lm_head"], "modules_to_save=['lm_head']: fully trained modules are not served"),
    "trainable_token_indices": ([5, 9], "trainable_token_indices=[5, 9]: trained token embeddings"),
    "target_parameters": (
        ["mlp.experts.down_proj"],
        "LoRA on bare parameters (MoE experts) is not served",
    ),
    "layer_replication": ([[0, 2], [1, 2]], "layer_replication=[[0, 2], [1, 2]]: replicated layers"),
    "alora_invocation_tokens": (
        [7, 8],
        "alora_invocation_tokens=[7, 8]: activated LoRA (aLoRA) is not served",
    ),
    "arrow_config": ({"top_k": 3}, "Arrow routing is not served"),
    "kasa_config": ({"beta": 0.1}, "KaSA is not served"),
    "monteclora_config": ({"num_samples": 4}, "MonteCLoRA is not served"),
    "velora_config": ({"num_groups": 4}, "VeLoRA is not served"),
    "megatron_config": ({"a": 1}, "Megatron layers are not served"),
    "some_future_field": ({"a": 1}, "some_future_field={'a': 1}: unknown field; remove it if"),
}


def _check(fields: dict[str, object]) -> None:
    problems = AdapterProblems("a1", "/a1")
    check_features(fields, problems)
    problems.check()


@pytest.mark.parametrize("field", _REFUSED)
def test_a_field_that_is_not_served_is_refused_by_name(field):
    value, message = _REFUSED[field]
    with pytest.raises(AdapterError) as caught:
        _check(config_fields(4, ["q_proj"], **{field: value}))
    assert str(caught.value).startswith("adapter 'a1' (/a1): adapter_config.json: ")
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("start", ["pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "new_start", 1, []])
def test_a_start_that_may_change_the_base_is_refused(start):
    with pytest.raises(AdapterError, match="path_initial_model_for_weight_conversion"):
        _check(config_fields(4, ["q_proj"], init_lora_weights=start))


@pytest.mark.parametrize("start", [True, False, None, "gaussian", "eva", "orthogonal", "mica"])
def test_a_start_that_leaves_the_base_alone_is_served(start):
    _check(config_fields(4, ["q_proj"], init_lora_weights=start))


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_an_unknown_field_that_is_not_used_is_ignored(value):
    _check(config_fields(4, ["q_proj"], some_future_field=value))


def test_every_field_that_peft_writes_is_known():
    """A new field of PEFT must get a verdict here, even while its default asks for nothing."""
    fields = dict.fromkeys([field.name for field in dataclasses.fields(PeftLoraConfig)], "on")
    with pytest.raises(AdapterError) as caught:
        _check(fields)
    assert [problem for problem in caught.value.problems if "unknown field" in problem] == []


def test_the_configuration_that_peft_writes_is_served(tmp_path):
    PeftLoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]).save_pretrained(tmp_path)
    _check(json.loads((tmp_path / "adapter_config.json").read_text()))


def test_ms_swifts_training_fields_have_no_effect():
    _check(config_fields(4, ["q_proj"], lora_dtype="bf16", lorap_lr_ratio=16.0, lorap_emb_lr=1e-6))


def test_a_missing_peft_type_is_refused():
    with pytest.raises(AdapterError, match="peft_type=None: only LORA adapters are served"):
        _check({"r": 4, "target_modules": ["q_proj"]})


@pytest.mark.parametrize(
    "value",
    [10**5000, [10**5000], ["x" * 10**6] * 100, {"a": "b" * 1000}],
    ids=["number", "in a list", "list", "object"],
)
def test_any_value_can_be_shown(value):
    assert len(shorten(value)) <= 80


def test_a_deep_value_can_be_shown():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(shorten(deep)) <= 80
