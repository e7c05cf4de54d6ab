"""Combinations of adapters through the whole engine, against PEFT's `add_weighted_adapter` ("cat"), in float32."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel

from tensorrt_lora import LLM, LoraConfig, LoRARequest, SamplingParams, WeightedLoRARequests
from tensorrt_lora.llmapi.request_output import RequestError
from tests.support.adapter_fleet import Oracle
from tests.support.tiny_adapters import save_peft_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=0)
ADAPTERS: dict[str, dict[str, object]] = {
    "a": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "b": {"r": 3, "target_modules": ["v_proj", "up_proj"], "rank_pattern": {"layers.1.self_attn.v_proj": 5}},
    "rslora": {"r": 9, "use_rslora": True, "target_modules": ["o_proj", "v_proj"]},
    "vocabulary": {"r": 2, "target_modules": ["embed_tokens", "lm_head", "k_proj"]},
}
# PEFT 0.21 scales the sum by sqrt(rank) where the first part uses rsLoRA, so that one never comes first here.
COMBINATIONS: dict[str, list[tuple[str, float]]] = {
    "sum": [("a", 0.7), ("b", 0.9)],
    "difference": [("a", 1.0), ("b", -0.6)],
    "one": [("b", 0.5)],
    "twice": [("a", 0.25), ("a", 0.5)],
    "three": [("b", 0.5), ("rslora", 0.4), ("a", -0.3)],
    "vocabulary": [("vocabulary", 0.8), ("a", 0.5)],
    "nothing": [("a", 0.0), ("b", 0.0)],
}
TARGETS = ["attn_qkv", "attn_dense", "mlp_gate_up", "mlp_4h_to_h", "embed_tokens", "lm_head"]
_ids = itertools.count(100)

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT warns of tied weights and saved embeddings


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    directory = tmp_path_factory.mktemp("weighted")
    requests: dict[str, LoRARequest] = {}
    for number, (name, fields) in enumerate(ADAPTERS.items()):
        config = PeftLoraConfig(task_type="CAUSAL_LM", **fields)
        path = save_peft_adapter(directory / name, make_tiny_model("qwen3"), config, seed=number, strength=0.7)
        requests[name] = LoRARequest(name, number, str(path))
    models = {None: make_tiny_model("qwen3")}
    models |= {
        name: PeftModel.from_pretrained(make_tiny_model("qwen3"), request.path).eval()
        for name, request in requests.items()
    }
    for name, parts in COMBINATIONS.items():
        models[f"mix {name}"] = _combine(requests, parts)
    return Oracle(save_tiny_model(directory / "model", "qwen3"), requests, models)


def _combine(requests: dict[str, LoRARequest], parts: list[tuple[str, float]]) -> PeftModel:
    names = list(dict.fromkeys(name for name, _ in parts))
    model = PeftModel.from_pretrained(make_tiny_model("qwen3"), requests[names[0]].path, adapter_name=names[0])
    for name in names[1:]:
        model.load_adapter(requests[name].path, adapter_name=name)
    model.add_weighted_adapter([name for name, _ in parts], [weight for _, weight in parts], "mix", "cat")
    model.set_adapter("mix")
    return model.eval()


@pytest.fixture(scope="module")
def llm(oracle: Oracle) -> Iterator[LLM]:
    with LLM(
        model=oracle.model_dir,
        executor="inline",
        device="cpu",
        max_seq_len=128,
        max_batch_size=16,
        lora_config=LoraConfig(max_loras=4, max_lora_rank=18, lora_target_modules=TARGETS),
    ) as llm:
        yield llm


def pairs(oracle: Oracle, name: str) -> list[tuple[LoRARequest, float]]:
    return [(oracle.requests[part], weight) for part, weight in COMBINATIONS[name]]


def prompt_for(number: int) -> list[int]:
    return [(7 * number + 3 * position) % 256 for position in range(6 + 5 * number)]


def test_a_mixed_batch_with_plain_and_base_rows_answers_as_peft_does(oracle: Oracle, llm: LLM):
    names = [None, *(f"mix {name}" for name in COMBINATIONS), *ADAPTERS, "mix three", None]
    requests = [
        None if name is None else oracle.requests[name] if name in ADAPTERS else pairs(oracle, name[4:])
        for name in names
    ]
    prompts = [prompt_for(number) for number in range(len(names))]
    outputs = llm.generate(prompts, PARAMS, requests)
    for name, prompt, output in zip(names, prompts, outputs, strict=True):
        assert output.error is None
        [completion] = output.outputs
        tokens = completion.token_ids
        logprobs = [entry[token].logprob for entry, token in zip(completion.logprobs, tokens, strict=True)]
        oracle.check_greedy(name, prompt, tokens, logprobs)


def test_combinations_change_the_answers(oracle: Oracle):
    """What keeps the other tests honest: the oracle's answers differ from base and from their parts."""
    prompt = prompt_for(3)
    for name, parts in COMBINATIONS.items():
        mixed = oracle.logprobs(f"mix {name}", prompt)
        for other in {None, *(part for part, _ in parts)}:
            assert (mixed - oracle.logprobs(other, prompt)).abs().max() > 0.1 or (name == "nothing" and other is None)


def test_weights_of_zero_are_the_base_and_one_of_one_is_the_adapter(oracle: Oracle, llm: LLM):
    a = oracle.requests["a"]
    outputs = llm.generate([prompt_for(4)] * 4, PARAMS, [None, [(a, 0.0)], a, [(a, 1.0)]])
    base, nothing, plain, whole = (output.outputs[0].token_ids for output in outputs)
    assert base == nothing != plain == whole


def test_the_output_names_the_combination(oracle: Oracle, llm: LLM):
    parts = pairs(oracle, "difference")
    output = llm.generate(prompt_for(1), PARAMS, parts)
    assert output.lora_request == WeightedLoRARequests(tuple(parts))
    assert output.lora_request.name == "1 * a + -0.6 * b"
    assert llm.generate_async(prompt_for(1), PARAMS, parts).result().outputs[0].token_ids == output.outputs[0].token_ids


def test_the_parts_stay_as_they_are(oracle: Oracle, llm: LLM):
    """Combined again and again, and with other weights: nothing is folded into a part."""
    a, prompt = oracle.requests["a"], prompt_for(5)
    before = llm.generate(prompt, PARAMS, a).outputs[0].token_ids
    for weight in (2.0, 0.5, -1.0, 2.0):
        llm.generate(prompt, PARAMS, [(a, weight), (oracle.requests["b"], weight)])
    assert llm.generate(prompt, PARAMS, a).outputs[0].token_ids == before


def _refusal(llm: LLM, oracle: Oracle, parts: list[tuple[LoRARequest, float]]) -> str:
    """The error of a combination that must be refused, in a batch that it must not harm."""
    a, prompt = oracle.requests["a"], prompt_for(2)
    expected = [llm.generate(prompt, PARAMS, request).outputs[0].token_ids for request in (a, None)]
    outputs = llm.generate([prompt] * 3, PARAMS, [a, parts, None])
    assert [output.error is None for output in outputs] == [True, False, True]
    assert [outputs[0].outputs[0].token_ids, outputs[2].outputs[0].token_ids] == expected
    with pytest.raises(RequestError) as caught:
        llm.generate(prompt, PARAMS, parts)
    assert llm.generate(prompt, PARAMS, a).outputs[0].token_ids == expected[0]
    return str(caught.value)


def test_ranks_that_add_up_to_more_than_the_limit(oracle: Oracle, llm: LLM):
    parts = [(oracle.requests["rslora"], 0.5)] * 2 + [(oracle.requests["a"], 1)]
    message = _refusal(llm, oracle, parts)
    assert message.startswith("adapter '0.5 * rslora + 0.5 * rslora + 1 * a' (")
    assert "the ranks add up to 9 + 9 + 4 = 22 in one module, above max_lora_rank=18" in message
    assert "raise it in LoraConfig to 22" in message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_dora": True}, "adapter 'other' has DoRA magnitudes, which cannot be added up; use it alone"),
        ({"lora_bias": True}, "adapter 'other' has trained biases, which PEFT does not combine; use it alone"),
    ],
)
def test_a_part_that_is_more_than_pairs(
    oracle: Oracle, llm: LLM, tmp_path: Path, fields: dict[str, object], message: str
):
    config = PeftLoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], **fields)
    save_peft_adapter(tmp_path, make_tiny_model("qwen3"), config)
    other = LoRARequest("other", next(_ids), str(tmp_path))
    assert message in _refusal(llm, oracle, [(oracle.requests["a"], 0.5), (other, 0.5)])
    assert llm.generate(prompt_for(2), PARAMS, other).error is None


def test_a_part_that_cannot_be_read(oracle: Oracle, llm: LLM):
    gone = LoRARequest("gone", next(_ids), "/no/such/adapter")
    message = _refusal(llm, oracle, [(oracle.requests["a"], 0.5), (gone, 0.5)])
    assert message.startswith("adapter 'gone' (/no/such/adapter): the path does not exist")


def test_an_id_that_means_two_adapters(oracle: Oracle, llm: LLM):
    a = oracle.requests["a"]
    other = LoRARequest("z", a.lora_int_id, a.lora_path)
    assert "lora_int_id 0 already stands for adapter 'a'" in _refusal(llm, oracle, [(a, 0.5), (other, 0.5)])
