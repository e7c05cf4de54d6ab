"""Every module can be imported here, and the settings need neither torch nor a model library."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tensorrt_lora

_PACKAGE = Path(tensorrt_lora.__file__).parent
_MODULES = sorted(
    ".".join(file.relative_to(_PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in _PACKAGE.rglob("*.py")
)


@pytest.mark.parametrize("module", _MODULES)
def test_imports(module: str) -> None:
    import_module(module)


@pytest.mark.parametrize("name", tensorrt_lora.__all__)
def test_public_name(name: str) -> None:
    assert getattr(tensorrt_lora, name).__name__ == name
    assert name in dir(tensorrt_lora)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Llm'"):
        _ = tensorrt_lora.Llm


def test_settings_need_no_torch() -> None:
    code = "import sys, tensorrt_lora as t; t.TorchLlmArgs, t.SamplingParams; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
