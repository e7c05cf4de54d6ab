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
    "layers pattern is no regex": (
        {"layers_pattern": "layers[", "layers_to_transform": [1]},
        "layers_pattern='layers[': must be a regular expression",
    ),
}  # fmt: skip


def _parse(fields: dict[str, object]) -> PeftConfig:
    return PeftConfigParser(config_fields(4, ["q_proj"], **fields), AdapterProblems("a1", "/a1")).parse()


@pytest.mark.parametrize(("fields", "message"), _MALFORMED.values(), ids=_MALFORMED)
def test_a_malformed_field_is_refused_by_name(fields, message):
    with pytest.raises(AdapterError) as caught:
        _parse(fields)
    assert str(caught.value).startswith("adapter 'a1' (/a1): adapter_config.json: ")
    assert message in str(caught.value)


def test_every_wrong_field_is_listed():
    with pytest.raises(AdapterError) as caught:
        _parse({"r": -1, "use_dora": True, "use_rslora": "yes", "bias": "all"})
    assert str(caught.value).startswith("adapter 'a1' (/a1): 4 problems\n  - adapter_config.json: bias='all'")
    assert [problem.split(" ")[1].partition("=")[0] for problem in caught.value.problems] == [
        "bias",
        "use_dora",
        "r",
        "use_rslora",
    ]


def test_values_are_read():
    config = _parse(
        {
            "lora_alpha": 0.5,
            "use_rslora": None,
            "layers_to_transform": 3,
            "layers_pattern": "h",
            "rank_pattern": {"b": 2, "a": 1},
            "base_model_name_or_path": "no/such",
        }
    )
    assert (config.r, config.lora_alpha, config.use_rslora) == (4, 0.5, False)
    assert (config.layers_to_transform, config.layers_pattern) == ((3,), ("h",))
    assert list(config.rank_pattern) == ["b", "a"]  # the file's order decides which pattern wins
    assert config.base_model == "no/such"
