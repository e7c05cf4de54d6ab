"""The base class of every user-facing setting.

Owns the rules that all settings share: unknown keys are refused, values are not converted between types,
objects never change. Called by every file of this folder and by `SamplingParams`. Knows no setting itself.
"""

from pydantic import BaseModel, ConfigDict


class StrictBaseModel(BaseModel):
    """A frozen pydantic model without unknown keys, type conversion, infinities or NaN.

    An `int` is accepted where a `float` is expected, and a plain dict where a nested model is; nothing else
    is converted. Raises `pydantic.ValidationError`, which is a `ValueError`, with one line for every field
    that is wrong.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
    )
