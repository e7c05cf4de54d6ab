"""The executor over a tiny model: running one step ahead changes nothing that a client can see."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tensorrt_lora import LoraConfig, LoRARequest, SamplingParams, TorchLlmArgs
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.engine.py_executor import PyExecutor
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.module_types import LoraModuleType
from tests.support.tiny_models import save_tiny_model

SETTINGS: dict[str, object] = {
    "device": "cpu",
    "max_batch_size": 6,
    "max_num_tokens": 24,
    "max_seq_len": 96,
    "kv_cache_config": {"tokens_per_block": 8, "max_tokens": 200},
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "llama")


def make_requests(seed: int) -> list[GenerationRequest]:
    """Greedy and random, short and long, with stop tokens that come up, penalties, logprobs, several sequences."""
    rng = random.Random(seed)
    requests = []
    for number in range(24):
        greedy = rng.random() < 0.4
        params = SamplingParams(
            max_tokens=rng.choice([1, 2, 5, 24]),
            min_tokens=rng.choice([0, 0, 1]),
            temperature=0.0 if greedy else 1.0,
            n=1 if greedy else rng.choice([1, 3]),
            seed=number,
            stop_token_ids=[rng.randrange(256) for _ in range(12)],
            ignore_eos=rng.random() < 0.5,
            logprobs=rng.choice([None, 0, 2]),
            prompt_logprobs=rng.choice([None, None, 1]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.2]),
        )
        prompt = [rng.randrange(256) for _ in range(rng.randint(1, 40))]
        requests.append(GenerationRequest(number, prompt, params))
    return requests


@dataclass
class Answer:
    """The responses to one sequence, joined."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    rest: list[object] = field(default_factory=list)


def run(model_dir: Path, requests: list[GenerationRequest], *, run_ahead: bool) -> dict[tuple[int, int], Answer]:
    executor = PyExecutor(TorchLlmArgs(model=model_dir, **SETTINGS), run_ahead=run_ahead)
    answers: dict[tuple[int, int], Answer] = defaultdict(Answer)
    waiting = list(requests)
    while waiting or executor.has_work:
        for request in waiting[:2]:
            executor.enqueue(request)
        del waiting[:2]
        for response in executor.step():
            collect(answers, response)
    executor.kv_cache_manager.check_integrity([])
    executor.shutdown()
    return answers


def collect(answers: dict[tuple[int, int], Answer], response: GenerationResponse) -> None:
    assert response.error is None
    answer = answers[response.request_id, response.sequence_index]
    answer.token_ids += response.token_ids
    for entry in response.logprobs or []:
        answer.logprobs += [logprob.logprob for logprob in entry.values()]
        answer.rest.append(list(entry))
    if response.prompt_logprobs is not None:
        answer.rest.append(len(response.prompt_logprobs))
    if response.finish_reason is not None:
        answer.rest.append((response.finish_reason, response.stop_reason))


@pytest.mark.parametrize("seed", range(4))
def test_running_ahead_gives_the_same_answers(model_dir: Path, seed: int):
    requests = make_requests(seed)
    ahead, plain = (run(model_dir, requests, run_ahead=run_ahead) for run_ahead in (True, False))
    assert ahead.keys() == plain.keys()
    for key, answer in ahead.items():
        assert (answer.token_ids, answer.rest) == (plain[key].token_ids, plain[key].rest)
        # Other batches, other last bits.
        assert answer.logprobs == pytest.approx(plain[key].logprobs, abs=1e-4)


def test_an_abort_while_a_token_is_in_flight_ends_the_request_once(model_dir: Path):
    executor = PyExecutor(TorchLlmArgs(model=model_dir, **SETTINGS), run_ahead=True)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    for number in range(2):
        executor.enqueue(GenerationRequest(number, [1, 2, 3], params))
    for _ in range(4):
        executor.step()
    executor.abort(0)
    responses = [response for _ in range(40) for response in executor.step()]
    ends = [(r.request_id, r.finish_reason) for r in responses if r.finish_reason is not None]
    assert ends == [(0, "abort"), (1, "length")]
    assert not executor.has_work and executor.kv_cache_manager.stats().held_pages == 0
    executor.shutdown()


def overflowing_adapter(request: LoRARequest) -> AdapterWeights:
    """Finite weights whose product is not."""
    huge = torch.full((1, 72), 1e30)
    modules = {(0, LoraModuleType.MLP_4H_TO_H): LoraModuleWeights(torch.full((1, 112), 1e30), huge, scale=1.0)}
    return AdapterWeights(request.lora_name, "huge", modules)


@pytest.mark.parametrize("ending", ["error", "abort", "preemption"])
@pytest.mark.parametrize("reuse", [False, True])
def test_nan_that_a_request_leaves_in_its_pages_reaches_nobody(model_dir: Path, ending: str, reuse: bool):
    cache = {"tokens_per_block": 8, "max_tokens": 96, "enable_block_reuse": reuse}
    args = TorchLlmArgs(model=model_dir, lora_config=LoraConfig(), **{**SETTINGS, "kv_cache_config": cache})
    executor = PyExecutor(args, read_adapter=overflowing_adapter)
    prompts = [[number, 7, 8] for number in range(3, 9)]
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    responses: list[GenerationResponse] = []
    if ending == "preemption":  # the first of these outgrow the pages, and the broken one is the last to come
        for number, prompt in enumerate(prompts[:3]):
            executor.enqueue(GenerationRequest(number, prompt, params))
        responses += [response for _ in range(3) for response in executor.step()]
    broken = GenerationRequest(99, list(range(60)), SamplingParams(max_tokens=2), LoRARequest("huge", 1, "/huge"))
    executor.enqueue(broken)
    for _ in range(40):
        responses += executor.step()
        if ending == "abort" and any(r.num_computed_tokens >= 24 for r in executor.scheduler.running):
            executor.abort(99)
            break
    for number, prompt in enumerate(prompts):
        if ending != "preemption" or number >= 3:
            executor.enqueue(GenerationRequest(number, prompt, params))
    while executor.has_work:
        responses += executor.step()
    ends = {response.request_id: response.finish_reason for response in responses if response.finish_reason}
    assert ends.pop(99) == ("abort" if ending == "abort" else "error")
    assert ends == dict.fromkeys(range(6), "length")
    executor.shutdown()
