"""docs/serving.md: its examples run in their order, and its metrics are those that there are."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.serve.conftest import make_adapter
from tests.support.metric_samples import MetricSamples
from tests.support.server_process import SERVE, free_port, running

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "serving.md").read_text(encoding="utf-8")
ADDRESS = "localhost:8000"
MODEL = "Qwen/Qwen3-0.6B"
START = "tensorrt-lora serve"
KEYS = {"TENSORRT_LORA_API_KEY": "user-key", "TENSORRT_LORA_ADMIN_KEY": "admin-key"}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_METRIC = re.compile(r"tensorrt_lora_\w+")


def examples() -> list[tuple[str, str]]:
    """(language, code) of every block."""
    return _BLOCK.findall(GUIDE)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Path:
    """The directory that the guide's reader is in: serve.yaml and some adapters."""
    place = tmp_path_factory.mktemp("guide")
    for seed, name in enumerate(("pirate", "pirate-2", "butler"), start=1):
        make_adapter(place / "adapters" / name, seed=seed)
    [settings] = [code for language, code in examples() if language == "yaml"]
    assert settings.count(MODEL) == 1
    (place / "serve.yaml").write_text(settings.replace(MODEL, str(model_dir)))
    return place


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    """A server started by the guide's own command."""
    [command] = [code for language, code in examples() if language == "bash" and START in code]
    port = free_port()
    run = f"exec {shlex.join(SERVE)} --device cpu --port {port}"
    with running(["bash", "-euc", command.replace(START, run)], f"http://127.0.0.1:{port}", cwd=place) as server:
        yield server.url


def test_examples_run(url: str, place: Path) -> None:
    address, namespace = url.removeprefix("http://"), {}
    languages = []
    for language, code in examples():
        if language == "yaml" or START in code or (language == "bash" and shutil.which("curl") is None):
            continue
        languages.append(language)
        code = code.replace(ADDRESS, address)
        if language == "python":
            exec(compile(code, "docs/serving.md", "exec"), namespace)
        else:
            run = subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=place, capture_output=True, text=True)
            assert run.returncode == 0, f"{code}\n{run.stdout}{run.stderr}"
    assert languages.count("python") == 5
    if "bash" not in languages:
        pytest.skip("curl is missing: its examples did not run")
    assert languages.count("bash") == 7
    # What the examples have done: pirate was replaced, butler loaded by name, valet loaded and unloaded.
    cards = httpx.get(f"{url}/v1/adapters", headers={"Authorization": "Bearer user-key"}).json()["data"]
    assert {card["name"]: Path(card["path"]).name for card in cards} == {"pirate": "pirate-2", "butler": "butler"}
    assert MetricSamples.of(url)(
        "generation_requests_total", endpoint="completions", outcome="refused", adapter="pirate"
    )


def test_metrics_of_the_guide(url: str) -> None:
    """The table names every metric once, and none that is not there."""
    families = {
        line.split()[2].removeprefix("tensorrt_lora_")
        for line in httpx.get(f"{url}/metrics").text.splitlines()
        if line.startswith("# TYPE") and not line.split()[2].endswith("_created")
    }
    table = GUIDE[GUIDE.index("| `tensorrt_lora_...`") :].splitlines()[2:]
    rows = [line for line in table if line.startswith("|")]
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(told) == sorted(families)


def test_the_dashboard_queries_metrics_that_there_are(url: str) -> None:
    headers = {"Authorization": "Bearer user-key"}
    body = {"model": "pirate", "prompt": "a", "max_tokens": 3, "stream": True, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=body, headers=headers)  # histograms show up with their first value
    names = MetricSamples.of(url).names
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    assert len(queries) > 30
    queried = {name for query in queries for name in _METRIC.findall(query)}
    assert queried <= names, queried - names
    # And shows all of them.
    plain = {name for name in names if not name.endswith(("_created", "_sum", "_count"))}
    assert plain - {"tensorrt_lora_http_requests"} <= queried, plain - queried
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_settings_of_the_guide(url: str) -> None:
    """The environment's keys are those that the examples send."""
    for name, key in KEYS.items():
        assert f"{name}={key}" in GUIDE
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert "TENSORRT_LORA_API_KEY" not in os.environ
