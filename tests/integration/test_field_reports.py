"""What users reported about running engines, each as a small batch with the right answer.

Those about adapter files are in `tests/adapters/test_field_reports.py`; reports that fit neither are listed at the end.
"""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel

from tensorrt_lora import LLM, LoraConfig, LoRARequest, RequestOutput, SamplingParams
from tensorrt_lora.engine.py_executor import PyExecutor
from tensorrt_lora.llmapi.request_output import RequestError
from tests.support.adapter_fleet import Oracle
from tests.support.field_report import report
from tests.support.tiny_adapters import config_fields, find_sites, random_tensors, save_peft_adapter, write_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NAMES = ["rank1", "rank3_rslora", "rank8_patterns", "rank17_mlp", "rank64_layer1"]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=0)
PROMPT = [3, 141, 59, 26, 53, 58, 97]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle.create(tmp_path_factory.mktemp("oracle"), "qwen3")


@pytest.fixture(scope="module")
def make_llm(oracle: Oracle) -> Iterator[Callable[..., LLM]]:
    """Engines by their settings, made once; `lora` are fields of LoraConfig."""
    made: dict[str, LLM] = {}

    def make(lora: dict[str, object] | None = None, *, with_lora: bool = True, **fields: object) -> LLM:
        key = repr((lora, with_lora, fields))
        if key not in made:
            lora_config = LoraConfig(**{"max_loras": 5, **(lora or {})}) if with_lora else None
            settings = {"model": oracle.model_dir, "max_seq_len": 384, "max_batch_size": 8, **fields}
            made[key] = LLM(executor="inline", device="cpu", lora_config=lora_config, **settings)
        return made[key]

    yield make
    for llm in made.values():
        llm.shutdown()


@pytest.fixture
def llm(make_llm: Callable[..., LLM]) -> LLM:
    return make_llm()


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], LoRARequest]:
    """Adapter k: rank k + 1 on all seven projections."""
    directory = tmp_path_factory.mktemp("seven")
    sites = find_sites(make_tiny_model("qwen3"))

    def make(number: int) -> LoRARequest:
        path = directory / f"s{number}"
        if not path.exists():
            tensors = random_tensors(sites, tuple(ALL), number + 1, seed=number)
            write_adapter(path, tensors, config_fields(number + 1, ALL))
        return LoRARequest(path.name, 1000 + number, str(path))

    return make


_ids = itertools.count(10_000)


def ids(output: RequestOutput) -> list[int]:
    assert output.error is None
    return output.outputs[0].token_ids


def solo(llm: LLM, adapter: LoRARequest | None, prompt: list[int] = PROMPT) -> list[int]:
    return ids(llm.generate(prompt, GREEDY, adapter))


def check(oracle: Oracle, name: str | None, prompt: list[int], output: RequestOutput) -> None:
    [completion] = output.outputs
    logprobs = [entry[token].logprob for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)]
    oracle.check_greedy(name, prompt, completion.token_ids, logprobs)


# Batches


@report("trtllm-2096", "sglang-5928")
@pytest.mark.parametrize("order", list(itertools.permutations([None, "rank1", "rank17_mlp"])))
def test_rows_answer_as_alone_in_any_order(oracle: Oracle, llm: LLM, order: tuple[str | None, ...]):
    outputs = llm.generate([PROMPT] * 6, GREEDY, [oracle.requests.get(name or "") for name in order * 2])
    for name, output in zip(order * 2, outputs, strict=True):
        check(oracle, name, PROMPT, output)


@report("vllm-42008")
def test_base_after_a_long_adapter_request_is_base(oracle: Oracle, llm: LLM):
    before = solo(llm, None)
    llm.generate(list(range(200)), GREEDY, oracle.requests["rank64_layer1"])
    assert solo(llm, None) == before


@report("vllm-32235", "llamacpp-18466")
def test_as_many_adapters_as_slots_and_base_in_one_batch(llm: LLM, seven: Callable[[int], LoRARequest]):
    requests = [None, *(seven(number) for number in range(5)), None]
    outputs = llm.generate([PROMPT] * len(requests), GREEDY, requests)
    assert [ids(output) for output in outputs] == [solo(llm, request) for request in requests]
    assert len({tuple(ids(output)) for output in outputs}) == 6


@report("vllm-49063", "trtllm-17412")
def test_enabling_lora_leaves_base_rows_bit_equal(oracle: Oracle, make_llm: Callable[..., LLM]):
    prompts = [list(range(start, start + 9)) for start in range(0, 60, 20)]
    off = make_llm(with_lora=False).generate(prompts, GREEDY)
    llm = make_llm()
    assert [output.outputs[0].logprobs for output in llm.generate(prompts, GREEDY)] == [
        output.outputs[0].logprobs for output in off
    ]
    mixed = llm.generate([*prompts, PROMPT], GREEDY, [None] * 3 + [oracle.requests["rank1"]])
    assert [ids(output) for output in mixed[:3]] == [ids(output) for output in off]


@report("sglang-28091", "sglang-21864", "nanovllm-voxcpm-74")
def test_ranks_of_all_sizes_beside_each_other(oracle: Oracle, llm: LLM):
    outputs = llm.generate([PROMPT] * 5, GREEDY, [oracle.requests[name] for name in NAMES])
    for name, output in zip(NAMES, outputs, strict=True):
        check(oracle, name, PROMPT, output)
        check(oracle, name, PROMPT, llm.generate(PROMPT, GREEDY, oracle.requests[name]))


@report("vllm-14827", "lmdeploy-3995")
@pytest.mark.parametrize("family", ["qwen3_untied", "llama", "qwen2", "arcee"])
def test_every_family_in_float32_with_an_adapter(tmp_path: Path, family: str):
    model_dir = save_tiny_model(tmp_path / "model", family)
    config = PeftLoraConfig(r=4, target_modules="all-linear")
    adapter = save_peft_adapter(tmp_path / "a", make_tiny_model(family), config)
    lora_config = LoraConfig(lora_dir=[str(adapter)])
    with LLM(model=model_dir, executor="inline", device="cpu", max_seq_len=64, lora_config=lora_config) as llm:
        output = llm.generate(PROMPT, GREEDY, LoRARequest("a", 1, str(adapter)))
    models = {"a": PeftModel.from_pretrained(make_tiny_model(family), adapter).eval()}
    check(Oracle(model_dir, {}, models), "a", PROMPT, output)


# Lengths


@report("lorax-68", "vllm-53028")
def test_prompts_of_every_length(oracle: Oracle, llm: LLM):
    lengths = range(1, 301, 23)
    prompts = [[(7 * position + length) % 256 for position in range(length)] for length in lengths]
    params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=0)
    for prompt, output in zip(prompts, llm.generate(prompts, params, oracle.requests["rank8_patterns"]), strict=True):
        check(oracle, "rank8_patterns", prompt, output)


@report("vllm-11086")
def test_many_tokens(oracle: Oracle, llm: LLM):
    params = SamplingParams(max_tokens=96, ignore_eos=True, logprobs=0)
    check(oracle, "rank3_rslora", PROMPT, llm.generate(PROMPT, params, oracle.requests["rank3_rslora"]))


@report("vllm-4995", "sglang-23141", "sglang-25865")
def test_chunked_prompts_of_several_adapters(oracle: Oracle, make_llm: Callable[..., LLM]):
    names = ["rank1", None, "rank17_mlp", "rank64_layer1"]
    prompts = [[(number + 5 * position) % 256 for position in range(100)] for number in range(4)]
    chunked = make_llm({"max_loras": 2}, max_num_tokens=16)
    outputs = chunked.generate(prompts, GREEDY, [oracle.requests.get(name or "") for name in names])
    for name, prompt, output in zip(names, prompts, outputs, strict=True):
        check(oracle, name, prompt, output)


@report("vllm-29955")
def test_log_probabilities_of_prompts_are_the_adapters(oracle: Oracle, llm: LLM):
    params = SamplingParams(max_tokens=1, ignore_eos=True, prompt_logprobs=0)
    outputs = llm.generate([PROMPT] * 3, params, [oracle.requests["rank1"], None, oracle.requests["rank17_mlp"]])
    for name, output in zip(["rank1", None, "rank17_mlp"], outputs, strict=True):
        entries = zip(output.prompt_logprobs[1:], PROMPT[1:], strict=True)
        ours = torch.tensor([entry[token].logprob for entry, token in entries])
        expected = oracle.logprobs(name, PROMPT)[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0.0)


# Prefix reuse, slots, host memory


@report("sglang-1921", "sglang-2880", "trtllm-11874")
def test_a_cached_prefix_belongs_to_its_adapter(oracle: Oracle, make_llm: Callable[..., LLM]):
    llm = make_llm(kv_cache_config={"tokens_per_block": 4})
    prompt = list(range(40))
    for name in ("rank1", None, "rank17_mlp", "rank1", None):
        check(oracle, name, prompt, llm.generate(prompt, GREEDY, oracle.requests.get(name or "")))


@report("sglang-15129", "sglang-17913", "vllm-16876", "sglang-36384", "skyrl-2250", "trtllm-6510")
def test_more_adapters_than_slots_come_and_go(oracle: Oracle, make_llm: Callable[..., LLM]):
    llm = make_llm({"max_loras": 1, "max_cpu_loras": 2})
    names = [*NAMES, *reversed(NAMES), *NAMES]
    outputs = llm.generate([PROMPT] * len(names), GREEDY, [oracle.requests[name] for name in names])
    for name, output in zip(names, outputs, strict=True):
        check(oracle, name, PROMPT, output)


@report("vllm-5105")
def test_an_adapter_whose_folder_is_gone_fails_alone_once_it_is_evicted(
    make_llm: Callable[..., LLM], seven: Callable[[int], LoRARequest], tmp_path: Path
):
    llm = make_llm({"max_loras": 1, "max_cpu_loras": 1})
    path = shutil.copytree(seven(0).lora_path, tmp_path / "moved")
    leaving = LoRARequest("leaving", next(_ids), str(path))
    first = solo(llm, leaving)
    shutil.rmtree(path)
    assert solo(llm, leaving) == first
    base, other = solo(llm, None), solo(llm, seven(1))
    with pytest.raises(RequestError, match=r"'leaving'.*the path does not exist"):
        llm.generate(PROMPT, GREEDY, leaving)
    assert (solo(llm, None), solo(llm, seven(1))) == (base, other)


@report("skyrl-1606", "trtllm-12815")
def test_an_adapter_is_read_once(oracle: Oracle, tmp_path: Path):
    engines: list[PyExecutor] = []

    def remember(args: object, *, progress: bool) -> PyExecutor:
        engines.append(PyExecutor(args, progress=progress))
        return engines[0]

    with LLM(
        model=oracle.model_dir, executor="inline", device="cpu", max_seq_len=128, executor_factory=remember,
        lora_config=LoraConfig(),
    ) as llm:  # fmt: skip
        params = SamplingParams(max_tokens=50, ignore_eos=True)
        llm.generate([PROMPT] * 4, params, oracle.requests["rank1"])
        llm.generate(PROMPT, params, oracle.requests["rank1"])
    store = engines[0].adapter_store
    assert store is not None and store.num_loads == 1


# Ids and names


@report("vllm-12199")
def test_adapters_of_the_start_and_later_ones_have_ids_of_their_own(
    oracle: Oracle, seven: Callable[[int], LoRARequest]
):
    requests = [LoRARequest(f"r{number}", number, seven(number).lora_path) for number in range(4)]
    lora_config = LoraConfig(lora_dir=[request.lora_path for request in requests[:3]])
    with LLM(model=oracle.model_dir, executor="inline", device="cpu", max_seq_len=64, lora_config=lora_config) as llm:
        outputs = llm.generate([PROMPT] * 4, GREEDY, requests)
        assert len({tuple(ids(output)) for output in outputs}) == 4
        assert [ids(output) for output in outputs] == [solo(llm, request) for request in requests]


@report("unsloth-2009", "genlm-backend-67")
def test_ids_from_zero_to_large_and_never_twice(llm: LLM, seven: Callable[[int], LoRARequest]):
    expected = solo(llm, seven(2))
    for number in (2**31, 2**40 + 7):
        assert solo(llm, LoRARequest("large", number, seven(2).lora_path)) == expected
    with pytest.raises(ValueError, match="lora_int_id of adapter 'negative' must be an integer >= 0, got -1"):
        LoRARequest("negative", -1, seven(2).lora_path)
    with pytest.raises(RequestError, match=rf"lora_int_id {2**31} already stands for adapter 'large'"):
        llm.generate(PROMPT, GREEDY, LoRARequest("large", 2**31, seven(1).lora_path))


@report("sglang-13771")
def test_one_folder_under_two_names(llm: LLM, seven: Callable[[int], LoRARequest]):
    twins = [LoRARequest(name, next(_ids), seven(3).lora_path) for name in ("one", "two")]
    outputs = llm.generate([PROMPT] * 2, GREEDY, twins)
    assert ids(outputs[0]) == ids(outputs[1]) == solo(llm, seven(3))


@report("llamacpp-28674")
def test_none_is_base_and_an_empty_list_is_a_mistake(llm: LLM):
    assert solo(llm, None) == ids(llm.generate(PROMPT, GREEDY))
    with pytest.raises(ValueError, match="lora_request has 0 entries for 1 prompts"):
        llm.generate(PROMPT, GREEDY, [])
    with pytest.raises(ValueError, match="lora_request must be a LoRARequest"):
        llm.generate(PROMPT, GREEDY, "")


@report("llamacpp-10374", "llamacpp-10377")
def test_a_weight_belongs_to_its_request(llm: LLM, seven: Callable[[int], LoRARequest]):
    adapter = seven(4)
    outputs = llm.generate([PROMPT] * 3, GREEDY, [[(adapter, 0.5)], adapter, [(adapter, 0.0)]])
    assert ids(outputs[1]) == solo(llm, adapter) and ids(outputs[2]) == solo(llm, None)
    assert ids(outputs[0]) == ids(llm.generate(PROMPT, GREEDY, [(adapter, 0.5)]))


# Failures and ends


@report("vllm-4879", "vllm-3310", "trtllm-13517", "trtllm-1781")
def test_an_adapter_above_the_limit_does_not_touch_a_running_stream(
    make_llm: Callable[..., LLM], oracle: Oracle, seven: Callable[[int], LoRARequest]
):
    llm = make_llm({"max_lora_rank": 16})
    expected = ids(llm.generate(PROMPT, SamplingParams(max_tokens=200, ignore_eos=True), seven(0)))
    stream = llm.generate_async(PROMPT, SamplingParams(max_tokens=200, ignore_eos=True), seven(0), streaming=True)
    next(iter(stream))
    with pytest.raises(RequestError, match="rank 64 is above max_lora_rank=16"):
        llm.generate(PROMPT, GREEDY, oracle.requests["rank64_layer1"])
    assert ids(stream.result()) == expected


@report("sglang-29179")
def test_aborting_streams_of_adapters_ends_them_at_once(oracle: Oracle, llm: LLM):
    params = SamplingParams(max_tokens=370, ignore_eos=True)
    streams = [llm.generate_async(PROMPT, params, oracle.requests[name], streaming=True) for name in NAMES[:4]]
    for stream in streams:
        next(iter(stream))
        stream.abort()
    assert [stream.result(timeout=10).outputs[0].finish_reason for stream in streams] == ["abort"] * 4
    assert solo(llm, oracle.requests["rank1"])


@report("sglang-36894")
def test_several_sequences_hold_one_adapter_until_the_last_ends(make_llm: Callable[..., LLM], oracle: Oracle):
    llm = make_llm({"max_loras": 1, "max_cpu_loras": 1})
    params = SamplingParams(max_tokens=8, n=3, temperature=1.0, seed=1, ignore_eos=True)
    future = llm.generate_async(PROMPT, params, oracle.requests["rank1"])
    check(oracle, "rank17_mlp", PROMPT, llm.generate(PROMPT, GREEDY, oracle.requests["rank17_mlp"]))
    assert len(future.result().outputs) == 3


# The vocabulary


@report("vllm-9207", "vllm-6314", "vllm-15036", "vllm-3000", "vllm-6605")
@pytest.mark.parametrize("family", ["qwen3", "qwen3_untied"])
def test_the_head_and_the_embedding_may_be_targets_of_any_vocabulary_without_an_adapter(tmp_path: Path, family: str):
    model_dir = save_tiny_model(tmp_path, family, overrides={"vocab_size": 301})
    targets = LoraConfig(lora_target_modules=["attn_q", "embed_tokens", "lm_head"])
    model = make_tiny_model(family, overrides={"vocab_size": 301})
    with LLM(model=model_dir, executor="inline", device="cpu", max_seq_len=64, lora_config=targets) as llm:
        check(Oracle(model_dir, {}, {None: model}), None, PROMPT, llm.generate(PROMPT, GREEDY))


# Left out, by reason:
#
# no such feature     experts (vllm-55545, -31534, -42007, sglang-26930; their adapters are refused); speculative
#                     decoding (lorax-570, sglang-12726, vllm-4872, -28334, trtllm-12617); beam search (vllm-17205);
#                     allowed tokens (vllm-15978); several devices (sglang-32584, vllm-21471, -20944, lorax-130,
#                     trtllm-8063); sleeping (vllm-39934, -53888); multimodal towers; aLoRA's switch inside a prompt
#                     (refused); merging (peft-2018, -1043: nothing is ever merged); adapters from tensors
#                     (unsloth-zoo-919); pausing one adapter (skyrl-1657)
# a server's affair   names, aliases and HTTP statuses (tgi-2505, mlx-lm-1745, trtbe-641, -413, vllm-11761, -46287); an
#                     adapter's own tokenizer and template (vllm-6227, kubeai-347); metrics (vllm-5830)
# tests of the store  reloading under one name (areal-1197, -1385, vllm-42125, sglang-32238): forgetting, versions and
#                     running requests are in tests/adapters/test_adapter_store.py; no public call reloads yet
# needs a GPU         graph sizes and replays (vllm-15269, -30872, -40038, sglang-29157, -28371, trtllm-5480), bits of
#                     kernels (vllm-48590, -50602, the 87,383 rows of -53028), overlap (sglang-28091): tests/gpu
# speed and memory    vllm-10062, -14435, -22782, -16961, sglang-13349, -8162, trtllm-8279, ...: benchmarks
