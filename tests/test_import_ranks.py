"""Imports point down: never to another folder of the same or a higher rank, and never in a circle.

Every import statement counts, inside functions and under TYPE_CHECKING too.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

_PACKAGE = Path(__file__).parents[1] / "tensorrt_lora"

# From the bottom up. Names of one layer never import each other; the two files stand on the settings.
_LAYERS: tuple[tuple[str, ...], ...] = (
    ("config", "utils"),
    ("sampling_params", "lora_request"),
    ("kernels",),
    ("attention_backend", "lora"),
    ("adapters", "modules"),
    ("models",),
    ("engine",),
    ("llmapi",),
    ("serve", "bench"),
    ("cli",),
    ("__init__",),
)
_RANK = {name: rank for rank, names in enumerate(_LAYERS) for name in names}


def _module_name(file: Path, package: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _unit(module: str) -> str:
    """The folder or top-level file of the package that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def _imports(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every module, or member of one, that `file` imports from the package."""
    module = _module_name(file, package).split(".")
    here = module if file.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{prefix}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == package.name)


def rank_violations(package: Path) -> list[str]:
    """One `file:line imports name` for every import that does not point down."""
    found = []
    for file in sorted(package.rglob("*.py")):
        unit = _unit(_module_name(file, package))
        for line, name in _imports(file, package):
            target = _unit(name)
            # `from tensorrt_lora import LLM` names a member of the package itself.
            rank = _RANK.get(target, _RANK["__init__"])
            if target != unit and rank >= _RANK[unit]:
                found.append(f"{file.relative_to(package.parent)}:{line} imports {name}")
    return found


def import_cycle(package: Path) -> list[str]:
    """The modules of one import cycle, if there is any; the package's own `__init__` imports lazily."""
    files = {_module_name(file, package): file for file in sorted(package.rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        targets = set()
        for _, name in _imports(file, package):
            target = name if name in files else name.rpartition(".")[0]
            if target in files and target != package.name:
                targets.add(target)
        graph[module] = targets - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_folder_has_a_rank() -> None:
    units = {_unit(_module_name(file, _PACKAGE)) for file in _PACKAGE.rglob("*.py")}
    assert units <= set(_RANK), f"give these a rank in _LAYERS: {sorted(units - set(_RANK))}"


def test_imports_point_down() -> None:
    assert rank_violations(_PACKAGE) == []


def test_no_import_cycles() -> None:
    assert import_cycle(_PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("kernels/a.py", "from tensorrt_lora.lora.layer import LoraLayer"),
        ("kernels/a.py", "import tensorrt_lora.engine.scheduler"),
        ("kernels/a.py", "from ..lora import layer"),
        ("lora/a.py", "from tensorrt_lora import attention_backend"),
        ("lora/a.py", "def f():\n    from tensorrt_lora.attention_backend.interface import x"),
        (
            "adapters/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tensorrt_lora.modules.x",
        ),
        ("config/a.py", "from tensorrt_lora.utils.device import x"),
        ("config/a.py", "from tensorrt_lora.sampling_params import SamplingParams"),
        ("lora_request.py", "from tensorrt_lora.sampling_params import SamplingParams"),
        ("engine/a.py", "from tensorrt_lora import LLM"),
    ],
)
def test_an_import_that_points_up_is_found(tmp_path: Path, file: str, source: str) -> None:
    package = tmp_path / "tensorrt_lora"
    (package / file).parent.mkdir(parents=True, exist_ok=True)
    (package / file).write_text(source)
    assert len(rank_violations(package)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "kernels/a.py",
            "from tensorrt_lora.utils import device\nfrom tensorrt_lora.kernels.b import x\nimport torch",
        ),
        ("sampling_params.py", "from tensorrt_lora.config.strict_base_model import StrictBaseModel"),
        ("cli/a.py", "from . import b\nfrom ..llmapi.llm import LLM"),
        ("__init__.py", "from tensorrt_lora.llmapi.llm import LLM"),
    ],
)
def test_an_import_that_points_down_is_not(tmp_path: Path, file: str, source: str) -> None:
    package = tmp_path / "tensorrt_lora"
    (package / file).parent.mkdir(parents=True, exist_ok=True)
    (package / file).write_text(source)
    assert rank_violations(package) == []


def test_a_cycle_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "tensorrt_lora" / "lora"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("from tensorrt_lora.lora.b import x")
    (folder / "b.py").write_text("def f():\n    from tensorrt_lora.lora import c")
    (folder / "c.py").write_text("from .a import y")
    assert set(import_cycle(tmp_path / "tensorrt_lora")) == {f"tensorrt_lora.lora.{name}" for name in "abc"}
