"""The calls about adapters, on the toy engine, which loads everything at once but the path "missing"."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tensorrt_lora.sampling_params import SamplingParams

NEXT = LoRARequest("next", 1, "adapters/next")
MISSING = LoRARequest("nowhere", 2, "missing")


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_load_list_unload(make_llm: Callable[..., LLM], executor: str) -> None:
    llm = make_llm(executor=executor)
    status = llm.load_lora(NEXT, pinned=True)
    assert (status.lora_int_id, status.name, status.pinned) == (1, "next", True)
    assert llm.list_loras() == [status]
    assert llm.stats().requests_running == 0
    llm.unload_lora(1)
    assert llm.list_loras() == []
    with pytest.raises(ValueError, match="lora_int_id 1 stands for no adapter"):
        llm.unload_lora(1)


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_a_refused_adapter_raises_with_its_kind(make_llm: Callable[..., LLM], executor: str) -> None:
    llm = make_llm(executor=executor)
    with pytest.raises(AdapterError, match=r"adapter 'nowhere' \(missing\): the path does not exist") as caught:
        llm.load_lora(MISSING)
    assert caught.value.kind == "bad_adapter"


def test_a_load_can_be_awaited(llm: LLM) -> None:
    async def load() -> str:
        return (await asyncio.wrap_future(llm.load_lora_async(NEXT))).name

    assert asyncio.run(load()) == "next"


def test_relative_paths_mean_the_callers_directory(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert llm.load_lora(LoRARequest("here", 3, "here")).path == os.path.join(tmp_path, "here")


@pytest.mark.parametrize("wrong", [None, "next", [(NEXT, 0.5)], WeightedLoRARequests(((NEXT, 1.0),))])
def test_only_a_single_adapter_is_loaded(llm: LLM, wrong: object) -> None:
    with pytest.raises(ValueError, match="an adapter is loaded by its LoRARequest, got"):
        llm.load_lora(wrong)


@pytest.mark.parametrize("wrong", [None, "1", 1.0, True])
def test_an_id_is_an_integer(llm: LLM, wrong: object) -> None:
    with pytest.raises(ValueError, match="lora_int_id must be an integer"):
        llm.unload_lora(wrong)


def test_without_lora(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(lora_config=None)
    with pytest.raises(ValueError, match=r"adapter 'next' was to be loaded, but LoRA is off"):
        llm.load_lora(NEXT)


def test_after_the_end(llm: LLM) -> None:
    llm.shutdown()
    for call in (llm.list_loras, llm.stats, lambda: llm.load_lora(NEXT), lambda: llm.unload_lora(1)):
        with pytest.raises(EngineDeadError, match="create a new LLM"):
            call()


def test_calls_are_answered_while_requests_run(llm: LLM) -> None:
    future = llm.generate_async("abc", SamplingParams(max_tokens=10**6), streaming=True)
    next(iter(future))
    assert llm.stats().requests_running == 1
    assert llm.load_lora(NEXT).name == "next"
    future.abort()
