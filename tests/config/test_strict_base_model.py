"""StrictBaseModel: every setting is described, bounded and unconverted."""

import types
from collections.abc import Iterator
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.strict_base_model import StrictBaseModel
from tensorrt_lora.sampling_params import SamplingParams


class _Inner(StrictBaseModel):
    size: int = 1


class _Outer(StrictBaseModel):
    inner: _Inner
    share: float = 0.5


def test_nested_settings_may_be_plain_dicts() -> None:
    assert _Outer(inner={"size": 3}) == _Outer(inner=_Inner(size=3))


def test_an_integer_is_a_float_and_nothing_else_is_converted() -> None:
    assert _Outer(inner=_Inner(), share=1).share == 1.0
    for value in ("1", True, None):
        with pytest.raises(ValidationError, match="share"):
            _Outer(inner=_Inner(), share=value)


def test_errors_name_the_nested_field() -> None:
    with pytest.raises(ValueError) as error:
        _Outer(inner={"size": "1", "other": 2})
    assert [item["loc"] for item in error.value.errors()] == [("inner", "size"), ("inner", "other")]


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        arms = get_args(field.annotation) if isinstance(field.annotation, types.UnionType) else [field.annotation]
        for arm in arms:
            if isinstance(arm, type) and issubclass(arm, BaseModel):
                yield from _models(arm)


@pytest.mark.parametrize("model", [*_models(TorchLlmArgs), SamplingParams])
def test_every_setting_is_described(model: type[BaseModel]) -> None:
    assert issubclass(model, StrictBaseModel)
    for name, field in model.model_fields.items():
        assert field.description and field.description.endswith("."), f"{model.__name__}.{name} has no description"
