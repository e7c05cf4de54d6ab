"""The recorded shape of all settings: golden_manifest.json.

Owns the walk over `TorchLlmArgs` and the comparison with the recorded file, so that no setting changes
unnoticed. Called by `cli/manifest.py` and the tests. Knows no single setting.
"""

import difflib
import json
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, TypedDict, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tensorrt_lora.config.llm_args import TorchLlmArgs

DEFAULT_MANIFEST = Path("golden_manifest.json")


class ManifestRow(TypedDict, total=False):
    """One setting. Required ones have no `default`; only categorical ones have `allowed_values`."""

    path: str
    kind: Literal["value", "categorical"]
    type: str
    default: object
    allowed_values: list[object]


def manifest_rows(model: type[BaseModel]) -> list[ManifestRow]:
    """A row for every leaf of `model`, sorted by dotted path.

    An optional nested model has a row of its own beside its leaves, for its default.

    Raises TypeError for an annotation that has no name here: name it in `_type_name`.
    """
    return sorted(_rows(model, "", None), key=lambda row: row["path"])


def render_manifest(model: type[BaseModel] = TorchLlmArgs) -> str:
    """The text of golden_manifest.json for `model`."""
    return json.dumps({model.__name__: manifest_rows(model)}, indent=2, sort_keys=True) + "\n"


def diff_manifest(path: Path, model: type[BaseModel] = TorchLlmArgs) -> str:
    """Unified diff from the recorded file (a missing one is empty) to the live settings; empty if equal."""
    recorded = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = difflib.unified_diff(
        recorded.splitlines(keepends=True),
        render_manifest(model).splitlines(keepends=True),
        str(path),
        "live settings",
    )
    return "".join(lines)


def _rows(model: type[BaseModel], prefix: str, instance: BaseModel | None) -> Iterator[ManifestRow]:
    """`instance` is what the parent makes by default: its values, not the class's, are then the defaults."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        arms = _arms(field.annotation)
        nested = [arm for arm in arms if isinstance(arm, type) and issubclass(arm, BaseModel)]
        required = instance is None and field.is_required()
        default = _default(field) if instance is None else getattr(instance, name)
        if not nested or len(arms) > 1:
            yield _row(path, arms, required, default)
        for arm in nested:
            yield from _rows(arm, f"{path}.", default if isinstance(default, arm) else None)


def _row(path: str, arms: list[object], required: bool, default: object) -> ManifestRow:
    allowed = [value for arm in arms for value in _allowed_values(arm)]
    row: ManifestRow = {
        "path": path,
        "kind": "categorical" if allowed else "value",
        "type": "|".join(_type_name(arm) for arm in arms),
    }
    if not required:
        # A nested model's values have rows of their own.
        row["default"] = type(default).__name__ if isinstance(default, BaseModel) else default
    if allowed:
        row["allowed_values"] = allowed
    return row


def _default(field: FieldInfo) -> object:
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _arms(annotation: object) -> list[object]:
    """The arms of a union, or the one type there is, without what `Annotated` adds."""
    if get_origin(annotation) is Annotated:
        return _arms(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [inner for arm in get_args(annotation) for inner in _arms(arm)]
    return [annotation]


def _allowed_values(arm: object) -> list[object]:
    if get_origin(arm) is Literal:
        return list(get_args(arm))
    if isinstance(arm, type) and issubclass(arm, Enum):
        return [member.value for member in arm]
    return [value for inner in get_args(arm) for value in _allowed_values(inner)]


def _type_name(arm: object) -> str:
    """`int`, `none`, `literal`, `list[int]`, `dict[str,str]`, `LoraConfig`."""
    if arm is types.NoneType:
        return "none"
    origin = get_origin(arm)
    if origin is Literal:
        return "literal"
    if origin in (list, dict):
        inner = ",".join("|".join(_type_name(part) for part in _arms(argument)) for argument in get_args(arm))
        return f"{origin.__name__}[{inner}]"
    if isinstance(arm, type) and (issubclass(arm, (BaseModel, Enum)) or arm in (bool, int, float, str)):
        return arm.__name__
    raise TypeError(f"no name for the annotation {arm!r} in the manifest")
