"""What users get wrong, through the whole engine: each mistake has its own message, and the next request is served."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorrt_lora import LLM, LoRARequest, SamplingParams
from tensorrt_lora.llmapi.request_output import RequestError
from tests.support.malformed_adapters import LORA_CONFIG, MALFORMED, write_good_adapter
from tests.support.tiny_models import save_tiny_model

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)
PROMPT = [1, 2, 3, 4, 5]
_ids = itertools.count(100)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def llm(model_dir: Path) -> Iterator[LLM]:
    with LLM(model=model_dir, executor="inline", device="cpu", max_seq_len=64, lora_config=LORA_CONFIG) as llm:
        yield llm


@pytest.fixture
def good(tmp_path: Path) -> LoRARequest:
    return LoRARequest("good", next(_ids), str(write_good_adapter(tmp_path / "good")))


def answer(llm: LLM, adapter: LoRARequest | None = None) -> list[int]:
    return llm.generate(PROMPT, PARAMS, adapter).outputs[0].token_ids


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_bad_adapter_fails_alone_and_by_name(llm: LLM, good: LoRARequest, tmp_path: Path, kind: str):
    spoil, message = MALFORMED[kind]
    expected, base = answer(llm, good), answer(llm)
    directory = write_good_adapter(tmp_path / "bad", seed=1)
    spoil(directory)
    bad = LoRARequest("spoiled", next(_ids), str(directory))
    outputs = llm.generate([PROMPT] * 3, PARAMS, [good, bad, None])
    assert [output.error is None for output in outputs] == [True, False, True]
    assert [outputs[0].outputs[0].token_ids, outputs[2].outputs[0].token_ids] == [expected, base]
    with pytest.raises(RequestError, match=r"(?s)'spoiled'.*" + message):
        llm.generate(PROMPT, PARAMS, bad)
    assert answer(llm, good) == expected


BAD_REQUESTS: dict[str, tuple[list[int], SamplingParams, str]] = {
    "empty prompt": ([], PARAMS, r"prompt is empty"),
    "token outside the vocabulary": ([1, 272], PARAMS, r"token id 272.*0 to 271"),
    "negative token": ([-1], PARAMS, r"-1"),
    "too long": ([1] * 61, PARAMS, r"61 tokens and max_tokens=4 exceed max_seq_len=64"),
    "too much asked for": ([1], SamplingParams(max_tokens=64), r"max_tokens=64 exceed max_seq_len=64"),
}


@pytest.mark.parametrize("kind", BAD_REQUESTS)
def test_a_bad_request_fails_alone(llm: LLM, kind: str):
    prompt, params, message = BAD_REQUESTS[kind]
    expected = answer(llm)
    with pytest.raises(ValueError, match=message):
        llm.generate({"prompt_token_ids": prompt}, params)
    outputs = llm.generate([PROMPT, [1] * 62], PARAMS)
    assert outputs[0].outputs[0].token_ids == expected and "max_seq_len" in str(outputs[1].error)


def test_an_id_that_stands_for_another_adapter_is_refused(llm: LLM, good: LoRARequest, tmp_path: Path):
    expected = answer(llm, good)
    with pytest.raises(RequestError, match=rf"{good.lora_int_id}.*good"):
        llm.generate(PROMPT, PARAMS, LoRARequest("other", good.lora_int_id, good.lora_path))
    assert answer(llm, good) == expected


def test_a_path_that_does_not_exist_is_named(llm: LLM):
    with pytest.raises(RequestError, match=r"'gone'.*/no/such/adapter"):
        llm.generate(PROMPT, PARAMS, LoRARequest("gone", next(_ids), "/no/such/adapter"))
    assert answer(llm)


BAD_SETTINGS: dict[str, tuple[dict[str, object], str]] = {
    "no such model": ({"model": "/no/such/model"}, r"/no/such/model"),
    "unknown setting": ({"max_batch": 3}, r"max_batch"),
    "tensor parallelism": ({"tensor_parallel_size": 2}, r"tensor_parallel_size=2"),
    "FlashInfer on a CPU": ({"attn_backend": "FLASHINFER"}, r"FLASHINFER.*CUDA"),
    "more tokens than the model allows": ({"max_seq_len": 513}, r"max_seq_len=513.*512"),
    "a KV cache too small for one sequence": (
        {"max_seq_len": 64, "kv_cache_config": {"max_tokens": 32}},
        r"max_seq_len=64 needs 4",
    ),
    "rank zero": ({"lora_config": {"max_lora_rank": 0}}, r"max_lora_rank"),
    "fewer adapters on the host than on the device": (
        {"lora_config": {"max_loras": 4, "max_cpu_loras": 3}},
        r"max_cpu_loras=3.*max_loras=4",
    ),
    "unknown target": ({"lora_config": {"lora_target_modules": ["q_proj"]}}, r"q_proj.*attn_q"),
    "no room for one adapter": (
        {"lora_config": {"max_lora_rank": 64}, "peft_cache_config": {"device_cache_percent": 1e-9}},
        r"max_lora_rank=64.*device_cache_percent",
    ),
}


@pytest.mark.parametrize("kind", BAD_SETTINGS)
def test_a_bad_setting_is_refused_at_the_start(model_dir: Path, kind: str):
    settings, message = BAD_SETTINGS[kind]
    with pytest.raises(ValueError, match=message):
        LLM(**{"model": model_dir, "executor": "inline", "device": "cpu", **settings})


def test_an_adapter_without_lora_config_is_refused(model_dir: Path, good: LoRARequest):
    with LLM(model=model_dir, executor="inline", device="cpu", max_seq_len=64) as llm:
        with pytest.raises(ValueError, match=r"lora_config"):
            llm.generate(PROMPT, PARAMS, good)
        assert answer(llm)
