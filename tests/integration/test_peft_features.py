"""DoRA, biases, LoRA on embedding and head: whole engine against transformers + PEFT, in float32 on the CPU.

PEFT runs one adapter at a time (it refuses DoRA in mixed batches); the engine runs all of them in one batch.
"""

import random
from collections.abc import Callable

import pytest
import torch

from tensorrt_lora import LLM, LoraConfig, LoRARequest, RequestOutput, SamplingParams
from tensorrt_lora.config.lora_module_names import DEFAULT_HF_MODULES
from tests.support.adapter_fleet import Oracle
from tests.support.peft_features import FEATURES, make_feature_model
from tests.support.tiny_models import make_tiny_model, save_tiny_model

MAX_TOKENS = 24
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
# Tied and untied, with biases on q, k and v, on all projections, and on none.
FAMILIES = ["qwen2", "qwen2_untied", "llama_tied_bias", "qwen3_untied", "arcee"]


def features_of(family: str) -> list[str]:
    has_biases = family.startswith("qwen2") or family.endswith("bias")
    return [name for name in FEATURES if has_biases or name != "lora_bias"]


@pytest.fixture(scope="module")
def oracle_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    oracles: dict[str, Oracle] = {}

    def make(family: str) -> Oracle:
        if family not in oracles:
            base, _, untied = family.partition("_untied")
            overrides: dict[str, object] = {"tie_word_embeddings": False} if untied else {}
            directory = tmp_path_factory.mktemp(family)
            model_dir = save_tiny_model(directory / "model", base, overrides=overrides)
            models: dict[str | None, torch.nn.Module] = {None: make_tiny_model(base, overrides=overrides)}
            requests = {}
            for number, name in enumerate(features_of(family)):
                model = models[name] = make_feature_model(make_tiny_model(base, overrides=overrides), name)
                model.save_pretrained(directory / name)
                requests[name] = LoRARequest(name, number, str(directory / name))
            oracles[family] = Oracle(model_dir, requests, models)
        return oracles[family]

    return make


def make_llm(oracle: Oracle, *, max_loras: int = len(FEATURES), **fields: object) -> LLM:
    lora_config = LoraConfig(
        max_loras=max_loras, max_lora_rank=17, lora_target_modules=list(DEFAULT_HF_MODULES), overlap_lora_and_base=True
    )
    settings: dict[str, object] = {"max_batch_size": 16, "max_num_tokens": 512, "max_seq_len": 128, **fields}
    return LLM(
        model=oracle.model_dir,
        executor="inline",
        device="cpu",
        lora_config=lora_config,
        **settings,
    )


def prompts_for(adapters: list[str | None], *, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randint(5, 40))] for _ in adapters]


def generate(llm: LLM, oracle: Oracle, adapters: list[str | None], *, seed: int = 0) -> list[RequestOutput]:
    """Run the adapters in one batch and compare each with PEFT."""
    prompts = prompts_for(adapters, seed=seed)
    outputs = llm.generate(prompts, GREEDY, [None if name is None else oracle.requests[name] for name in adapters])
    for name, prompt, output in zip(adapters, prompts, outputs, strict=True):
        assert output.error is None
        completion = output.outputs[0]
        entries = zip(completion.logprobs, completion.token_ids, strict=True)
        oracle.check_greedy(name, prompt, completion.token_ids, [entry[token].logprob for entry, token in entries])
    return outputs


@pytest.mark.parametrize("family", FAMILIES)
def test_every_feature_in_one_mixed_batch(oracle_for: Callable[[str], Oracle], family: str):
    oracle = oracle_for(family)
    with make_llm(oracle) as llm:
        generate(llm, oracle, [None, *features_of(family), None])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_feature_changes_the_answers(oracle_for: Callable[[str], Oracle], family: str):
    """What keeps the other tests honest."""
    oracle = oracle_for(family)
    prompt = prompts_for([None], seed=0)[0]
    base = oracle.logprobs(None, prompt)
    for name in features_of(family):
        assert (oracle.logprobs(name, prompt) - base).abs().max() > 0.3, name


@pytest.mark.parametrize("feature", features_of("qwen2"))
def test_each_feature_alone(oracle_for: Callable[[str], Oracle], feature: str):
    oracle = oracle_for("qwen2")
    with make_llm(oracle, max_loras=1) as llm:
        generate(llm, oracle, [feature], seed=1)


def test_three_slots_for_all_of_them_in_chunks(oracle_for: Callable[[str], Oracle]):
    """Slots change hands between adapters with and without extra rows, and are loaded again."""
    oracle = oracle_for("qwen2")
    adapters = features_of("qwen2")
    with make_llm(oracle, max_loras=3, max_num_tokens=23) as llm:
        generate(llm, oracle, [*adapters, None, *reversed(adapters)], seed=2)


def test_prompt_logprobs_are_those_of_the_adapted_head(oracle_for: Callable[[str], Oracle]):
    oracle = oracle_for("qwen2")
    adapters: list[str | None] = ["lm_head", None, "dora_everywhere", "dora"]
    prompts = prompts_for(adapters, seed=3)
    params = SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=0)
    with make_llm(oracle, max_num_tokens=30) as llm:
        requests = [None if name is None else oracle.requests[name] for name in adapters]
        outputs = llm.generate(prompts, params, requests)
    for name, prompt, output in zip(adapters, prompts, outputs, strict=True):
        expected = oracle.logprobs(name, prompt)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        entries = zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
        ours = torch.tensor([entry[token].logprob for entry, token in entries])
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0.0)
