"""Whole engine against transformers + PEFT, in float32 on the CPU: equal greedy tokens and log-probabilities."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tensorrt_lora import LLM, LoraConfig, RequestOutput, SamplingParams, TorchLlmArgs
from tensorrt_lora.engine.executor_worker import ExecutorFactory
from tensorrt_lora.engine.py_executor import PyExecutor
from tests.support.adapter_fleet import Oracle
from tests.support.tiny_models import FAMILIES

MAX_TOKENS = 64
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
FLEET = ["rank1", "rank3_rslora", "rank8_patterns", "rank17_mlp", "rank64_layer1"]
MIXED: list[str | None] = [None, *FLEET]


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Oracle]:
    return {}


@pytest.fixture
def oracle_for(oracles: dict[str, Oracle], tmp_path_factory: pytest.TempPathFactory):
    def make(family: str) -> Oracle:
        if family not in oracles:
            oracles[family] = Oracle.create(tmp_path_factory.mktemp(family), family)
        return oracles[family]

    return make


def make_llm(
    model_dir: Path, *, max_loras: int = 5, executor_factory: ExecutorFactory = PyExecutor, **fields: object
) -> LLM:
    settings: dict[str, object] = {"max_batch_size": 8, "max_num_tokens": 256, "max_seq_len": 256, **fields}
    lora_config = LoraConfig(max_loras=max_loras, max_lora_rank=64, overlap_lora_and_base=True)
    return LLM(
        model=model_dir,
        executor="inline",
        device="cpu",
        lora_config=lora_config,
        executor_factory=executor_factory,
        **settings,
    )


def prompts_for(adapters: Sequence[str | None], *, seed: int = 0, shared: int = 0) -> list[list[int]]:
    """One prompt of 5 to 60 tokens each; the first `shared` tokens are the same in all."""
    rng = random.Random(seed)
    prefix = [rng.randrange(256) for _ in range(shared)]
    return [prefix + [rng.randrange(256) for _ in range(rng.randint(5, 60))] for _ in adapters]


def generate(llm: LLM, oracle: Oracle, adapters: Sequence[str | None], prompts: list[list[int]]) -> list[RequestOutput]:
    requests = [None if name is None else oracle.requests[name] for name in adapters]
    outputs = llm.generate(prompts, GREEDY, requests)
    for name, prompt, output in zip(adapters, prompts, outputs, strict=True):
        assert output.error is None
        completion = output.outputs[0]
        logprobs = [
            entry[token].logprob for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)
        ]
        assert len(completion.token_ids) == MAX_TOKENS
        oracle.check_greedy(name, prompt, completion.token_ids, logprobs)
    return outputs


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_adapters_change_the_answers(oracle_for):
    """What keeps the other tests honest: the oracle's answers really differ."""
    oracle = oracle_for("qwen3")
    prompt = prompts_for([None])[0]
    base = oracle.logprobs(None, prompt)
    for name in FLEET:
        assert (oracle.logprobs(name, prompt) - base).abs().max() > 0.3, name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixed_batch_answers_as_peft_does(oracle_for, family: str):
    oracle = oracle_for(family)
    with make_llm(oracle.model_dir) as llm:
        generate(llm, oracle, MIXED, prompts_for(MIXED))


def run_ahead(args: TorchLlmArgs, *, progress: bool) -> PyExecutor:
    """The engine as it runs with CUDA graphs: the host queues a step before it knows the tokens of the last one."""
    return PyExecutor(args, progress=progress, run_ahead=True)


@pytest.mark.parametrize("max_loras", [2, 5])
def test_running_ahead_of_the_device(oracle_for, max_loras: int):
    oracle = oracle_for("qwen3")
    with make_llm(oracle.model_dir, max_loras=max_loras, max_num_tokens=40, executor_factory=run_ahead) as llm:
        generate(llm, oracle, MIXED, prompts_for(MIXED, seed=6))


@pytest.mark.parametrize("family", ["qwen3", "llama", "arcee"])
def test_each_adapter_alone_answers_as_in_the_batch(oracle_for, family: str):
    oracle = oracle_for(family)
    prompts = prompts_for(MIXED, seed=1)
    with make_llm(oracle.model_dir, kv_cache_config={"enable_block_reuse": False}) as llm:
        together = generate(llm, oracle, MIXED, prompts)
        alone = [generate(llm, oracle, [name], [prompt])[0] for name, prompt in zip(MIXED, prompts, strict=True)]
    assert tokens(alone) == tokens(together)


def test_chunked_prefill(oracle_for):
    oracle = oracle_for("qwen3")
    with make_llm(oracle.model_dir, max_num_tokens=11) as llm:
        generate(llm, oracle, MIXED, prompts_for(MIXED, seed=2))


def test_two_slots_for_five_adapters(oracle_for):
    oracle = oracle_for("qwen3")
    adapters = [*MIXED, *reversed(MIXED), *MIXED]
    with make_llm(oracle.model_dir, max_loras=2) as llm:
        generate(llm, oracle, adapters, prompts_for(adapters, seed=3))


def test_prefix_reuse_keeps_adapters_apart(oracle_for):
    """The same prompts again and again: pages are reused within an adapter and never across adapters."""
    oracle = oracle_for("qwen3")
    prompts = prompts_for(MIXED, seed=4, shared=70)
    with make_llm(oracle.model_dir, kv_cache_config={"tokens_per_block": 8}) as llm:
        first = generate(llm, oracle, MIXED, prompts)
        again = generate(llm, oracle, MIXED, prompts)
        swapped = generate(llm, oracle, list(reversed(MIXED)), prompts)
    assert all(output.usage.cached_tokens == 0 for output in first)
    assert all(output.usage.cached_tokens >= 64 for output in again)
    # Reversed, each adapter has seen the shared 70 tokens (8 whole pages) but not the rest of its new prompt.
    assert [output.usage.cached_tokens for output in swapped] == [64] * len(MIXED)


def test_preemption_by_recomputation(oracle_for):
    """26 pages of 8 tokens for six sequences of up to 124 tokens: most of them are preempted, some twice."""
    oracle = oracle_for("qwen3")
    prompts = prompts_for(MIXED, seed=5)
    cache = {"tokens_per_block": 8, "max_tokens": 208, "enable_block_reuse": False}
    engines: list[PyExecutor] = []

    def remember(args: TorchLlmArgs, *, progress: bool) -> PyExecutor:
        engines.append(PyExecutor(args, progress=progress))
        return engines[0]

    with make_llm(oracle.model_dir, max_seq_len=128, kv_cache_config=cache, executor_factory=remember) as llm:
        generate(llm, oracle, MIXED, prompts)
    assert engines[0].scheduler.num_preemptions > 0
