"""Adapters that come and go in a running engine, inline and in its own process: each answer is the right version's."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorrt_lora import LLM, AdapterError, AdapterStatus, LoraConfig, LoRARequest, SamplingParams
from tensorrt_lora.llmapi.request_output import RequestError
from tests.support.tiny_adapters import config_fields, find_sites, random_tensors, write_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

PROMPT = list(range(1, 20))
SHORT = SamplingParams(max_tokens=8, ignore_eos=True)
LONG = SamplingParams(max_tokens=400, ignore_eos=True)
TIMEOUT = 60
_ids = itertools.count(10)

MakeAdapter = Callable[..., LoRARequest]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module", params=["inline", "process"])
def llm(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[LLM]:
    with start(model_dir, executor=request.param) as llm:
        yield llm


@pytest.fixture
def make_adapter(tmp_path: Path) -> MakeAdapter:
    sites = find_sites(make_tiny_model("qwen3"))

    def make(seed: int, request: LoRARequest | None = None) -> LoRARequest:
        """An adapter of its own, or other files for that of `request`."""
        if request is None:
            number = next(_ids)
            request = LoRARequest(f"a{number}", number, str(tmp_path / f"a{number}"))
        tensors = random_tensors(sites, ("q_proj", "down_proj"), 4, seed=seed)
        write_adapter(Path(request.path), tensors, config_fields(4, ["q_proj", "down_proj"]))
        return request

    return make


def start(model_dir: Path, *, executor: str, max_cpu_loras: int | None = None) -> LLM:
    return LLM(
        model_dir,
        executor=executor,
        device="cpu",
        max_batch_size=8,
        max_seq_len=448,
        kv_cache_config={"max_tokens": 4000, "tokens_per_block": 8},
        lora_config=LoraConfig(max_loras=2, max_lora_rank=8, max_cpu_loras=max_cpu_loras),
        progress=False,
    )


def answer(llm: LLM, adapter: LoRARequest | None, params: SamplingParams = SHORT) -> list[int]:
    return llm.generate(PROMPT, params, adapter).outputs[0].token_ids


def status_of(llm: LLM, adapter: LoRARequest) -> AdapterStatus | None:
    return next((one for one in llm.list_loras() if one.lora_int_id == adapter.lora_int_id), None)


def test_load_use_list_unload(llm: LLM, make_adapter: MakeAdapter):
    base, adapter = answer(llm, None), make_adapter(1)
    before = llm.stats()
    loaded = llm.load_lora(adapter)
    assert (loaded.lora_int_id, loaded.name, loaded.path) == (adapter.lora_int_id, adapter.name, adapter.path)
    assert (loaded.state, loaded.tier, loaded.rank, loaded.users, loaded.pinned) == ("ready", "host", 4, 0, False)
    assert loaded.host_bytes == llm.stats().adapter_host_bytes - before.adapter_host_bytes > 0
    assert answer(llm, adapter) != base
    used = status_of(llm, adapter)
    assert used is not None and (used.tier, used.version, used.users) == ("gpu", loaded.version, 0)
    assert used.last_used > loaded.last_used
    assert llm.load_lora(adapter).version == loaded.version
    after = llm.stats()
    assert (after.adapter_loads, after.slots_used, after.slots_total) == (
        before.adapter_loads + 1,
        before.slots_used + 1,
        2,
    )
    assert after.adapter_load_seconds > before.adapter_load_seconds
    assert after.eager_steps > before.eager_steps and after.graph_steps == 0
    llm.unload_lora(adapter.lora_int_id)
    assert status_of(llm, adapter) is None
    assert (llm.stats().adapter_host_bytes, llm.stats().slots_used) == (before.adapter_host_bytes, before.slots_used)


def test_an_unloaded_id_is_refused_until_it_is_loaded_again(llm: LLM, make_adapter: MakeAdapter):
    adapter = make_adapter(2)
    tokens = answer(llm, adapter)  # a first request loads an adapter, too
    llm.unload_lora(adapter.lora_int_id)
    with pytest.raises(RequestError, match=rf"lora_int_id {adapter.lora_int_id} was unloaded; load it again") as caught:
        answer(llm, adapter)
    assert caught.value.adapter_error_kind == "unloaded"
    with pytest.raises(ValueError, match=rf"lora_int_id {adapter.lora_int_id} stands for no adapter"):
        llm.unload_lora(adapter.lora_int_id)
    llm.load_lora(adapter)
    assert answer(llm, adapter) == tokens
    llm.unload_lora(adapter.lora_int_id)


def test_a_request_that_runs_keeps_its_adapter(llm: LLM, make_adapter: MakeAdapter):
    adapter = make_adapter(3)
    expected = answer(llm, adapter, LONG)
    future = llm.generate_async(PROMPT, LONG, adapter, streaming=True)
    next(iter(future))
    llm.unload_lora(adapter.lora_int_id)
    draining = status_of(llm, adapter)
    assert draining is not None and (draining.state, draining.tier, draining.users) == ("draining", "gpu", 1)
    make_adapter(4, adapter)
    new = llm.load_lora(adapter)
    assert new.version != draining.version
    other = answer(llm, adapter, LONG)
    assert future.result(TIMEOUT).outputs[0].token_ids == expected != other
    assert [one.version for one in llm.list_loras() if one.lora_int_id == adapter.lora_int_id] == [new.version]
    llm.unload_lora(adapter.lora_int_id)
    with pytest.raises(RequestError, match="was unloaded"):
        answer(llm, adapter)


def test_other_files_under_the_same_id_are_another_version(llm: LLM, make_adapter: MakeAdapter):
    adapter = make_adapter(5)
    old = answer(llm, adapter)
    expected = answer(llm, make_adapter(6))
    llm.unload_lora(adapter.lora_int_id)
    make_adapter(6, adapter)
    llm.load_lora(adapter)
    assert answer(llm, adapter) == expected != old  # the prefix cache has the old version's pages of this prompt


def test_loads_run_at_once(llm: LLM, make_adapter: MakeAdapter):
    adapters = [make_adapter(seed) for seed in range(7, 11)]
    futures = [llm.load_lora_async(adapter) for adapter in adapters for _ in range(2)]
    loads = llm.stats().adapter_loads
    names = [future.result(TIMEOUT).name for future in futures]
    assert names == [adapter.name for adapter in adapters for _ in range(2)]
    assert llm.stats().adapter_loads - loads <= 4
    for adapter in adapters:
        llm.unload_lora(adapter.lora_int_id)


def test_a_refused_adapter_says_why_in_words_and_by_kind(llm: LLM, make_adapter: MakeAdapter, tmp_path: Path):
    adapter = make_adapter(11)
    llm.load_lora(adapter)
    with pytest.raises(AdapterError, match="already stands for") as caught:
        llm.load_lora(LoRARequest("other", adapter.lora_int_id, adapter.path))
    assert caught.value.kind == "id_conflict"
    missing = LoRARequest("missing", next(_ids), str(tmp_path / "missing"))
    with pytest.raises(AdapterError, match=r"adapter 'missing' \(.*the path does not exist") as caught:
        llm.load_lora(missing)
    assert (caught.value.kind, caught.value.name) == ("bad_adapter", "missing")
    assert status_of(llm, missing) is None
    with pytest.raises(ValueError, match="by its LoRARequest"):
        llm.load_lora([(adapter, 0.5)])
    with pytest.raises(ValueError, match="must be an integer, got 'x'"):
        llm.unload_lora("x")
    llm.unload_lora(adapter.lora_int_id)


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_pinned_adapters_stay(model_dir: Path, make_adapter: MakeAdapter, executor: str):
    with start(model_dir, executor=executor, max_cpu_loras=2) as llm:
        first, second, third = (make_adapter(seed) for seed in (12, 13, 14))
        assert llm.load_lora(first, pinned=True).pinned
        for adapter in (second, third, second):
            answer(llm, adapter)
        states = {status.name: status.state for status in llm.list_loras()}
        assert states == {first.name: "ready", second.name: "ready", third.name: "evicted"}
        assert llm.stats().host_evictions == 2
        assert llm.load_lora(second, pinned=True).pinned
        with pytest.raises(AdapterError, match="2 pinned adapters take all of max_cpu_loras=2") as caught:
            llm.load_lora(third)
        assert caught.value.kind == "does_not_fit"
        with pytest.raises(RequestError, match="2 pinned adapters") as refused:
            answer(llm, third)
        assert refused.value.adapter_error_kind == "does_not_fit"
        assert not llm.load_lora(first, pinned=False).pinned
        answer(llm, third)
        assert {one.name for one in llm.list_loras() if one.state == "ready"} == {second.name, third.name}


def test_a_base_engine_has_no_adapters(model_dir: Path, make_adapter: MakeAdapter):
    with LLM(model_dir, executor="inline", device="cpu", progress=False) as llm:
        assert llm.list_loras() == []
        assert (llm.stats().slots_total, llm.stats().adapter_host_bytes_max) == (0, 0)
        with pytest.raises(ValueError, match=r"LoRA is off: create the LLM with lora_config=LoraConfig\(\)"):
            llm.load_lora(make_adapter(1))
        with pytest.raises(ValueError, match="runs without LoRA"):
            llm.unload_lora(1)


def test_nothing_is_left_after_many_cycles(llm: LLM, make_adapter: MakeAdapter):
    """Loaded, used by one and by several sequences, aborted while loading, running and waiting, and unloaded."""
    for status in llm.list_loras():
        llm.unload_lora(status.lora_int_id)
    before = llm.stats()
    adapters = [make_adapter(seed) for seed in (21, 22, 23)]
    several = SamplingParams(max_tokens=4, n=3, temperature=1.0, ignore_eos=True)
    for cycle in range(200):
        loads = [llm.load_lora_async(adapter, pinned=cycle % 3 == 0) for adapter in adapters]
        futures = [llm.generate_async(PROMPT, several, adapter, streaming=True) for adapter in adapters]
        endless = [llm.generate_async(PROMPT, LONG, adapter, streaming=True) for adapter in adapters]
        if cycle % 2:
            next(iter(endless[0]))  # the third would wait for a slot that the others hold
        if cycle % 4 < 2:
            for load in loads:
                load.result(TIMEOUT)
        for future in endless:
            future.abort()
        for adapter in adapters:
            llm.unload_lora(adapter.lora_int_id)
        for future in futures:
            assert [len(one.token_ids) for one in future.result(TIMEOUT).outputs] == [4, 4, 4]
    assert llm.list_loras() == []
    after = llm.stats()
    assert (after.requests_running, after.requests_waiting, after.kv_pages_used) == (0, 0, 0)
    assert (after.slots_used, after.adapter_host_bytes) == (before.slots_used, before.adapter_host_bytes) == (0, 0)
