"""A tiny real model with adapters in a root directory, served over HTTP."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from openai import OpenAI

from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.serve.app import create_app
from tensorrt_lora.serve.serve_config import ServeConfig
from tensorrt_lora.serve.server_metrics import ServerMetrics
from tests.support.live_server import live_server
from tests.support.tiny_adapters import config_fields, find_sites, random_tensors, write_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

API_KEY, ADMIN_KEY = "user-key", "admin-key"
_FIRST_OFFLINE_ID = 1_000_000  # far from the ids that a catalog gives


def make_adapter(directory: Path, *, seed: int, rank: int = 4) -> Path:
    """An adapter of the tiny model; its output depends on `seed` strongly."""
    sites = find_sites(make_tiny_model("qwen3"))
    tensors = random_tensors(sites, ("q_proj", "v_proj", "down_proj"), rank, seed=seed)
    return write_adapter(directory, tensors, config_fields(rank, ["q_proj", "v_proj", "down_proj"]))


@dataclass(frozen=True)
class Served:
    """A running server and what is behind it."""

    url: str
    app: FastAPI
    llm: LLM
    root: Path

    def client(self, key: str = API_KEY) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def post(self, path: str, body: object, *, key: str = API_KEY) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=30)

    def get(self, path: str, *, key: str = API_KEY) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers={"Authorization": f"Bearer {key}"}, timeout=30)

    def admin(self, action: str, **body: object) -> httpx.Response:
        return self.post(f"/v1/{action}_lora_adapter", body, key=ADMIN_KEY)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("serve") / "tiny", "qwen3")


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three adapters, and one outside that a link leads to."""
    base = tmp_path_factory.mktemp("adapters")
    root = base / "root"
    for seed, name in enumerate(("red", "green", "blue"), start=1):
        make_adapter(root / name, seed=seed)
    make_adapter(root / "team" / "nested", seed=4)
    make_adapter(base / "outside", seed=5)
    (root / "escape").symlink_to(base / "outside")
    return root


@pytest.fixture(scope="session")
def config(model_dir: Path, root: Path) -> ServeConfig:
    return ServeConfig.from_yaml(
        None,
        {
            "engine": {"model": str(model_dir), "executor": "inline", "device": "cpu", "max_seq_len": 512},
            "loras": {"red": str(root / "red")},
            "lora_root": str(root),
            "enable_adapter_admin": True,
            "api_key": API_KEY,
            "admin_key": ADMIN_KEY,
            "max_concurrent_sequences": 32,
            "max_prompts": 8,
        },
    )


@pytest.fixture(scope="session")
def served(config: ServeConfig, root: Path) -> Iterator[Served]:
    with LLM(args=config.engine, progress=False) as llm:
        app = create_app(llm, config, metrics=ServerMetrics(config))
        with live_server(app) as url:
            yield Served(url, app, llm, root)


@pytest.fixture(scope="session")
def offline(model_dir: Path, root: Path) -> Iterator["Offline"]:
    with LLM(model=model_dir, executor="inline", device="cpu", max_seq_len=512, lora_config={}, progress=False) as llm:
        yield Offline(llm, root)


class Offline:
    """The answers that a server must give, from an engine of their own."""

    def __init__(self, llm: LLM, root: Path) -> None:
        self.llm = llm
        self._root = root
        self._ids: dict[Path, int] = {}

    def adapter(self, name: str | None) -> LoRARequest | None:
        if name is None:
            return None
        path = self._root / name
        return LoRARequest(name, self._ids.setdefault(path, _FIRST_OFFLINE_ID + len(self._ids)), str(path))
