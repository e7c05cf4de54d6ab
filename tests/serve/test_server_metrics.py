"""What /metrics says after known traffic."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.serve.adapter_labels import BASE, OTHER, UNKNOWN
from tensorrt_lora.serve.admission_gate import AdmissionGate
from tensorrt_lora.serve.app import create_app
from tensorrt_lora.serve.request_record import RequestRecord
from tensorrt_lora.serve.serve_config import ServeConfig
from tensorrt_lora.serve.server_metrics import ServerMetrics
from tests.serve.conftest import ADMIN_KEY, API_KEY, Served
from tests.support.live_server import live_server
from tests.support.metric_samples import MetricSamples

PROMPT = "In the beginning was the word, and"  # two whole pages and some
WARM_UP = 1  # token of each model


@pytest.fixture(scope="module")
def measured(config: ServeConfig, root: Path) -> Iterator[Served]:
    """One slot on the device, and two adapters that metrics tell by name."""
    settings = config.model_dump(exclude={"api_key", "admin_key"})
    settings["engine"]["lora_config"]["max_loras"] = 1
    settings |= {"api_key": API_KEY, "admin_key": ADMIN_KEY, "max_metric_adapters": 2, "max_body_bytes": 5000}
    small = ServeConfig.model_validate(settings)
    with LLM(args=small.engine, progress=False) as llm:
        app = create_app(llm, small, metrics=ServerMetrics(small))
        with live_server(app) as url:
            yield Served(url, app, llm, root)


@pytest.fixture(scope="module")
def samples(measured: Served) -> MetricSamples:
    """Of a scrape after the traffic below, and nothing before it but the warm-up."""

    def complete(model: str, **fields: object) -> httpx.Response:
        body = {"model": model, "prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True, **fields}
        return measured.post("/v1/completions", body)

    def stream(model: str, **fields: object) -> None:
        assert complete(model, stream=True, **fields).text.endswith("data: [DONE]\n\n")

    for model in ("tiny", "red", "green", "blue"):  # the last two are loaded; blue is one too many to have a name
        assert complete(model).status_code == 200
    stream("red")
    stream("tiny", max_tokens=7, n=2, temperature=1.0)
    assert complete("nothing").status_code == 404
    assert complete("red", max_tokens=10**6).status_code == 422
    assert complete("red", max_tokens="many").status_code == 400
    assert measured.get("/v1/models", key="wrong").status_code == 401
    assert measured.post("/v1/chat/completions", {"model": "a" * 6000}).status_code == 413
    for path in ("/nowhere", "/nowhere/else", "/v1/models/tiny", "/v1/models/red"):
        measured.get(path)
    assert measured.admin("unload", lora_name="green").status_code == 200
    return MetricSamples.of(measured.url)


def test_answers_by_route_status_and_adapter(samples: MetricSamples) -> None:
    def answers(route: str, status: int, adapter: str = UNKNOWN) -> float:
        return samples("http_requests_total", route=route, status=str(status), adapter=adapter)

    completions = "/v1/completions"
    assert [answers(completions, 200, name) for name in (BASE, "red", "green", "blue", OTHER)] == [2, 2, 1, 0, 1]
    assert [answers(completions, status) for status in (404, 400)] == [1, 1]
    assert answers(completions, 422, "red") == 1
    assert answers("/v1/models", 401) == 1
    assert answers("/v1/chat/completions", 413) == 1
    assert answers("/v1/models/{model:path}", 200) == 2
    assert answers("other", 404) == 2
    assert answers("/v1/unload_lora_adapter", 200) == 1


def test_requests_by_outcome(samples: MetricSamples) -> None:
    def ended(outcome: str, adapter: str) -> float:
        return samples("generation_requests_total", endpoint="completions", outcome=outcome, adapter=adapter)

    assert [ended("ok", name) for name in (BASE, "red", "green", OTHER)] == [2, 2, 1, 1]
    assert (ended("refused", UNKNOWN), ended("refused", "red")) == (1, 1)
    assert samples("generation_requests_open") == samples("sequences_admitted") == 0
    assert samples("sequences_limit") == 32


def test_tokens_and_times(samples: MetricSamples) -> None:
    prompt = len(PROMPT)
    for adapter, requests, generated in ((BASE, 2, 5 + 14), ("red", 2, 10), ("green", 1, 5), (OTHER, 1, 5)):
        assert samples("generated_tokens_total", adapter=adapter) == generated
        assert samples("prompt_tokens_total", adapter=adapter) == requests * prompt
        assert samples("request_seconds_count", adapter=adapter) == requests
        assert samples("request_preparation_seconds_count", adapter=adapter) == requests
        assert samples("request_seconds_sum", adapter=adapter) > samples(
            "request_preparation_seconds_sum", adapter=adapter
        )
    streams = {BASE: 1, "red": 1}
    assert samples.with_label("time_to_first_token_seconds_count", "adapter") == streams
    gaps = samples.with_label("inter_token_seconds_count", "adapter")
    assert set(gaps) == set(streams) and 1 <= gaps["red"] <= 4  # fewer where tokens came together
    assert samples("inter_token_seconds_sum", adapter="red") < samples("request_seconds_sum", adapter="red")


def test_adapters(samples: MetricSamples) -> None:
    assert samples("engine_up") == 1
    assert samples("adapter_loads_total") == 3
    assert samples("adapter_load_seconds_total") > 0
    assert samples("adapter_slots") == 1
    # Red at the start, then red, green, blue, red: each takes the one slot of the one before.
    assert samples("adapter_evictions_total", tier="slot") == 3
    assert samples("adapter_evictions_total", tier="host") == 0
    assert samples.with_label("adapters", "tier") == {"gpu": 1, "host": 1, "disk": 0}
    assert samples.with_label("adapters", "state") == {"ready": 2, "loading": 0, "evicted": 0, "draining": 0}
    assert samples.with_label("adapter_users", "adapter") == {"red": 0, OTHER: 0}
    assert 0 < samples("adapter_host_bytes") <= samples("adapter_host_limit_bytes")


def test_engine(samples: MetricSamples) -> None:
    assert samples("requests_running") == samples("requests_waiting") == samples("kv_cache_pages_used") == 0
    assert samples("kv_cache_pages") > 0
    assert samples("engine_steps_total", mode="graph") == 0
    assert samples("engine_steps_total", mode="eager") >= 6 * 5
    # The second answers of the base model and of red find their prompt's two whole pages; other adapters have others.
    for adapter, cached in ((BASE, 32), ("red", 32), ("green", 0), (OTHER, 0)):
        assert samples("cached_prompt_tokens_total", adapter=adapter) == cached
    # By sequence: the base model's second request has two.
    assert samples("prefix_cache_hit_tokens_total") == 32 + 2 * 32
    assert samples("prefix_cache_queried_tokens_total") == 7 * len(PROMPT) + 2 * WARM_UP


def test_running_requests_are_seen(measured: Served) -> None:
    body = {"model": "red", "prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2}
    headers = {"Authorization": f"Bearer {API_KEY}"}
    url = f"{measured.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=30) as response:
        lines = response.iter_lines()
        next(lines)
        during = MetricSamples.of(measured.url)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert during("generation_requests_open") == 1 and during("sequences_admitted") == 2
    assert during("requests_running") == 1
    assert during("kv_cache_pages_used") >= 2
    assert during("adapter_users", adapter="red") == 1


class DeadEngine:
    def stats(self) -> EngineStats:
        raise EngineDeadError("gone")

    def list_loras(self) -> list[object]:
        raise AssertionError


def test_an_engine_that_is_gone(config: ServeConfig) -> None:
    metrics = ServerMetrics(config)
    metrics.count_response("/v1/models", 200, None)
    samples = MetricSamples(asyncio.run(metrics.render(DeadEngine(), AdmissionGate(1))).body.decode())
    assert samples("engine_up") == 0 and samples("http_requests_total", route="/v1/models", status="200", adapter="")
    assert "tensorrt_lora_adapters" not in samples.names


def test_names_are_bounded(config: ServeConfig) -> None:
    metrics = ServerMetrics(config)
    for index in range(1000):
        record = RequestRecord("completions", streams=True, adapter=f"adapter-{index}")
        metrics.requests.on_start(record)
        metrics.requests.on_tokens(record, 1, 0.01)
        metrics.requests.on_finish(record)
        metrics.count_response("/v1/completions", 200, record)
    samples = MetricSamples(asyncio.run(metrics.render(DeadEngine(), AdmissionGate(1))).body.decode())
    counts = samples.with_label("generated_tokens_total", "adapter")
    assert len(counts) == config.max_metric_adapters  # red, which is configured, was not used
    assert counts[OTHER] == 1000 - (config.max_metric_adapters - 1)
