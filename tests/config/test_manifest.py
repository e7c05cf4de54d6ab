"""golden_manifest.json records the live settings, and a change that is not recorded is caught."""

import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.manifest import diff_manifest, manifest_rows, render_manifest

_GOLDEN = Path(__file__).parents[2] / "golden_manifest.json"


def test_golden_manifest_is_up_to_date() -> None:
    diff = diff_manifest(_GOLDEN)
    assert not diff, f"settings changed without `make manifest`:\n{diff}"


def test_every_setting_has_a_row_in_order() -> None:
    paths = [row["path"] for row in manifest_rows(TorchLlmArgs)]
    assert paths == sorted(set(paths))
    assert {"model", "lora_config.overlap_lora_and_base", "kv_cache_config.tokens_per_block"} <= set(paths)


class _Leaf(BaseModel):
    size: int = 1
    mode: Literal["a", "b"] | None = None


class _Root(BaseModel):
    name: str
    sizes: list[int] | None = None
    names: dict[str, str] = Field(default_factory=dict)
    always: _Leaf = Field(default_factory=lambda: _Leaf(size=4))
    maybe: _Leaf | None = None


def test_rows() -> None:
    assert manifest_rows(_Root) == [
        {
            "path": "always.mode",
            "kind": "categorical",
            "type": "literal|none",
            "default": None,
            "allowed_values": ["a", "b"],
        },
        {"path": "always.size", "kind": "value", "type": "int", "default": 4},
        {"path": "maybe", "kind": "value", "type": "_Leaf|none", "default": None},
        {
            "path": "maybe.mode",
            "kind": "categorical",
            "type": "literal|none",
            "default": None,
            "allowed_values": ["a", "b"],
        },
        {"path": "maybe.size", "kind": "value", "type": "int", "default": 1},
        {"path": "name", "kind": "value", "type": "str"},
        {"path": "names", "kind": "value", "type": "dict[str,str]", "default": {}},
        {"path": "sizes", "kind": "value", "type": "list[int]|none", "default": None},
    ]


class _NewField(_Root):
    added: bool = False


class _NewDefault(_Root):
    always: _Leaf = Field(default_factory=_Leaf)


class _NewType(_Root):
    sizes: list[float] | None = None


class _NewChoice(_Root):
    maybe: _Leaf | None = Field(default_factory=_Leaf)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (_NewField, '+      "path": "added",'),
        (_NewDefault, '-      "default": 4,'),
        (_NewType, '+      "type": "list[float]|none"'),
        (_NewChoice, '+      "default": "_Leaf",'),
    ],
)
def test_an_unrecorded_change_is_a_diff(tmp_path: Path, changed: type[BaseModel], line: str) -> None:
    file = tmp_path / "golden.json"
    rows = {changed.__name__: manifest_rows(_Root)}
    file.write_text(json.dumps(rows, indent=2, sort_keys=True) + "\n")
    assert line in diff_manifest(file, changed).splitlines()


def test_a_missing_file_is_all_diff(tmp_path: Path) -> None:
    assert '+      "path": "model",' in diff_manifest(tmp_path / "none.json").splitlines()


def test_text_is_stable() -> None:
    text = render_manifest()
    assert text.endswith("}\n") and text.isascii()
    assert list(json.loads(text)) == ["TorchLlmArgs"]


def test_an_annotation_without_a_name_is_refused() -> None:
    class Odd(BaseModel):
        odd: complex = 0j

    with pytest.raises(TypeError, match="no name for the annotation <class 'complex'>"):
        manifest_rows(Odd)
