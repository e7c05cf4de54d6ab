import pytest

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterProblems
from tensorrt_lora.adapters.peft_config import PeftConfig
from tensorrt_lora.adapters.peft_config_parser import PeftConfigParser
from tests.support.tiny_adapters import config_fields

_MALFORMED = {
    "rank is a string": ({"r": "8"}, "r='8': must be an integer >= 1"),
    "rank is zero": ({"r": 0}, "r=0: must be an integer >= 1"),
    "rank is null": ({"r": None}, "r=None: must be an integer >= 1"),
    "rank is true": ({"r": True}, "r=True: must be an integer >= 1"),
    "alpha is a string": ({"lora_alpha": "16"}, "lora_alpha='16': must be a finite number"),
    "alpha is not a number": ({"lora_alpha": float("nan")}, "lora_alpha=nan: must be a finite number"),
    "alpha is beyond float": ({"lora_alpha": 10**400}, "must be a finite number"),
    "alpha is beyond float32": ({"lora_alpha": -1e31}, "must be a finite number, at most 1e+30 in size"),
    "alpha in a pattern is beyond float": ({"alpha_pattern": {"q": 10**350}}, "must be a finite number, at most 1e+30"),
    "rank is beyond float": ({"r": 10**400, "lora_alpha": 16.0}, "must be an integer >= 1, at most 65536"),
    "rank is beyond float with rslora": ({"r": 10**400, "use_rslora": True}, "must be an integer >= 1, at most 65536"),
    "rank in a pattern is beyond float": (
        {"rank_pattern": {"q_proj": 10**350}},
        f"rank_pattern['q_proj']={10**37}...",
    ),
    "rslora is a number": ({"use_rslora": 1}, "use_rslora=1: must be true or false"),
    "rank pattern is a list": ({"rank_pattern": ["q_proj"]}, "rank_pattern=['q_proj']: must be an object"),
    "rank in a pattern": ({"rank_pattern": {"q": 0}}, "rank_pattern['q']=0: must be an integer >= 1"),
    "alpha in a pattern": ({"alpha_pattern": {"q": "1"}}, "alpha_pattern['q']='1': must be a finite number"),
    "pattern is no regex": ({"rank_pattern": {"q(": 4}}, "rank_pattern='q(': must be a regular expression"),
    "targets are numbers": ({"target_modules": [1]}, "target_modules=[1]: must be a list of module names"),
    "target is no regex": ({"target_modules": "*q"}, "target_modules='*q': must be a regular expression"),
    "excluded is an object": ({"exclude_modules": {"a": 1}}, "exclude_modules={'a': 1}: must be a list"),
    "no targets": ({"target_modules": []}, "target_modules is empty, so PEFT would apply nothing"),
    "null targets": ({"target_modules": None}, "target_modules is empty, so PEFT would apply nothing"),
    "layer is a string": ({"layers_to_transform": ["1"]}, "layers_to_transform=['1']: must be a layer index"),
    "layers with a regex": (
        {"target_modules": ".*q_proj", "layers_to_transform": [1]},
        "need target_modules to be a list",
    ),
    "layers pattern alone": ({"layers_pattern": "layers"}, "layers_pattern needs layers_to_transform"),
    "bias is another word": ({"bias": "some"}, "bias='some': must be 'none', 'lora_only' or 'all'"),
    "dora is a number": ({"use_dora": 1}, "use_dora=1: must be true or false"),
    "dora with a bias": ({"use_dora": True, "lora_bias": True}, "use_dora and lora_bias exclude each other"),
    "pattern is too long": ({"target_modules": "q" * 10_001}, "must be at most 10000 characters long, it has 10001"),
    "too many patterns": ({"rank_pattern": {str(i): 1 for i in range(10_001)}}, "rank_pattern has 10001 entries"),
    "too many targets": ({"target_modules": ["q_proj"] * 10_001}, "target_modules has 10001 entries"),
    "layers pattern is no regex": (
        {"layers_pattern": "layers[", "layers_to_transform": [1]},
        "layers_pattern='layers[': must be a regular expression",
    ),
    "layers pattern with an index of its own": (
        {"layers_pattern": "(?P<idx>model)", "layers_to_transform": [1]},
        "layers_pattern='(?P<idx>model)': must be a regular expression (redefinition of group name 'idx'",
    ),
}  # fmt: skip


def _parse(fields: dict[str, object]) -> PeftConfig:
    problems = AdapterProblems("a1", "/a1")
    config = PeftConfigParser(config_fields(4, ["q_proj"], **fields), problems).parse()
    problems.check()
    return config


@pytest.mark.parametrize(("fields", "message"), _MALFORMED.values(), ids=_MALFORMED)
def test_a_malformed_field_is_refused_by_name(fields, message):
    with pytest.raises(AdapterError) as caught:
        _parse(fields)
    assert str(caught.value).startswith("adapter 'a1' (/a1): adapter_config.json: ")
    assert message in str(caught.value)


def test_every_wrong_field_is_listed():
    with pytest.raises(AdapterError) as caught:
        _parse({"r": -1, "use_qalora": True, "use_rslora": "yes", "task_type": "SEQ_CLS"})
    assert str(caught.value).startswith("adapter 'a1' (/a1): 4 problems\n  - adapter_config.json: task_type='SEQ_CLS'")
    assert [problem.split(" ")[1].partition("=")[0] for problem in caught.value.problems] == [
        "task_type",
        "use_qalora",
        "r",
        "use_rslora",
    ]


def test_what_is_not_served_is_left_for_the_caller_to_raise_with_the_tensors():
    problems = AdapterProblems("a1", "/a1")
    config = PeftConfigParser(config_fields(4, ["q_proj"], modules_to_save=["lm_head"]), problems).parse()
    assert config.r == 4
    with pytest.raises(AdapterError, match="modules_to_save"):
        problems.check()


def test_a_configuration_of_another_method_is_not_read_further():
    with pytest.raises(AdapterError) as caught:
        _parse({"peft_type": "IA3", "r": None})
    assert len(caught.value.problems) == 1


def test_values_are_read():
    config = _parse(
        {
            "lora_alpha": 0.5,
            "use_rslora": None,
            "layers_to_transform": 3,
            "layers_pattern": "h",
            "rank_pattern": {"b": 2, "a": 1},
            "base_model_name_or_path": "no/such",
            "use_dora": True,
            "bias": "lora_only",
            "ensure_weight_tying": None,
        }
    )
    assert (config.r, config.lora_alpha, config.use_rslora) == (4, 0.5, False)
    assert (config.layers_to_transform, config.layers_pattern) == ((3,), ("h",))
    assert list(config.rank_pattern) == ["b", "a"]  # the file's order decides which pattern wins
    assert config.base_model == "no/such"
    assert (config.use_dora, config.lora_bias, config.bias) == (True, False, "lora_only")
    assert not config.ensure_weight_tying
