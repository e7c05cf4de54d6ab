"""Forms become masks over tokens, through the whole engine: every answer that ends follows its form."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tensorrt_lora import LLM, LoRARequest, SamplingParams
from tensorrt_lora.config.guided_decoding_params import GuidedDecodingParams
from tensorrt_lora.engine.guided_decoder import GuidedDecoder
from tensorrt_lora.engine.py_executor import PyExecutor
from tensorrt_lora.llmapi.request_output import RequestError
from tests.support.tiny_adapters import config_fields, find_sites, random_tensors, write_adapter
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_model, make_tiny_tokenizer, save_tiny_model

EOS = 258
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["a", "bc"]}},
    "required": ["x", "kind"],
    "additionalProperties": False,
}
FORM = GuidedDecodingParams(json_schema=json.dumps(POINT))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def llm(model_dir: Path) -> Iterator[LLM]:
    fields = {"executor": "inline", "device": "cpu", "guided_decoding_backend": "llguidance", "lora_config": {}}
    with LLM(model=model_dir, progress=False, **fields) as llm:
        yield llm


def check_point(text: str) -> None:
    point = json.loads(text)
    assert set(point) == {"x", "kind"} and 0 <= point["x"] <= 99 and point["kind"] in ("a", "bc")


def test_greedy_and_drawn_answers_follow_the_schema(llm: LLM) -> None:
    drawn = SamplingParams(max_tokens=200, temperature=1.0, seed=3, n=4, guided_decoding=FORM)
    greedy = SamplingParams(max_tokens=200, guided_decoding=FORM)
    penalised = SamplingParams(max_tokens=200, frequency_penalty=1.0, repetition_penalty=1.5, guided_decoding=FORM)
    outputs = llm.generate(["abc"] * 3, [drawn, greedy, penalised])
    completions = [one for output in outputs for one in output.outputs]
    assert len(completions) == 6
    for completion in completions:
        assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
        check_point(completion.text)
    assert len({completion.text for completion in outputs[0].outputs}) > 1


def test_neighbours_are_left_alone_and_adapters_too(llm: LLM, tmp_path: Path) -> None:
    tensors = random_tensors(find_sites(make_tiny_model("qwen3")), ("q_proj", "down_proj"), 4)
    path = write_adapter(tmp_path / "adapter", tensors, config_fields(4, ["q_proj", "down_proj"]))
    adapter = LoRARequest("a", 1, str(path))
    plain, guided = SamplingParams(max_tokens=40, logprobs=1), SamplingParams(max_tokens=200, guided_decoding=FORM)
    alone = [llm.generate("abc", plain, one).outputs[0] for one in (None, adapter)]
    together = llm.generate(["abc"] * 4, [plain, guided, guided, plain], [None, None, adapter, adapter])
    assert together[0].outputs[0].token_ids == alone[0].token_ids
    assert together[3].outputs[0].token_ids == alone[1].token_ids
    for output in together[1:3]:
        check_point(output.outputs[0].text)


def test_log_probabilities_are_the_models_own(llm: LLM) -> None:
    """They tell how likely a token was without the form."""
    params = SamplingParams(max_tokens=4, logprobs=0, guided_decoding=FORM)
    guided = llm.generate("abc", params).outputs[0]
    forced = llm.generate(
        {"prompt_token_ids": llm.tokenizer.encode("abc") + guided.token_ids},
        SamplingParams(max_tokens=1, prompt_logprobs=0),
    )
    for position, token_id in enumerate(guided.token_ids):
        expected = forced.prompt_logprobs[3 + position][token_id].logprob
        assert guided.logprobs[position][token_id].logprob == pytest.approx(expected, abs=1e-4)


def test_an_answer_that_is_cut_off_is_a_beginning(llm: LLM) -> None:
    whole = llm.generate("abc", SamplingParams(max_tokens=200, guided_decoding=FORM)).outputs[0]
    cut = llm.generate("abc", SamplingParams(max_tokens=5, guided_decoding=FORM)).outputs[0]
    assert cut.finish_reason == "length" and whole.token_ids[:5] == cut.token_ids


def test_any_object(llm: LLM) -> None:
    form = GuidedDecodingParams(json_object=True)
    outputs = llm.generate(["abc"] * 4, SamplingParams(max_tokens=300, temperature=0.7, seed=1, guided_decoding=form))
    ended = [output.outputs[0] for output in outputs if output.outputs[0].finish_reason == "stop"]
    for completion in ended:
        assert isinstance(json.loads(completion.text), dict)
    assert all(output.outputs[0].text.startswith("{") for output in outputs)


BAD_SCHEMAS = {
    "no JSON": ("{", "cannot be read"),
    "no object": ("[]", "cannot be read"),
    "unknown type": ('{"type": "frog"}', "frog"),
    "unserved key": ('{"not": {"type": "string"}}', "not"),
    "remote reference": ('{"$ref": "http://example.com/x"}', "example.com"),
    "file reference": ('{"$ref": "file:///etc/passwd"}', "passwd"),
    "nothing fits": ('{"enum": []}', "empty"),
    "bad pattern": ('{"type": "string", "pattern": "("}', "regex"),
    "too deep": ('{"a":' * 2000 + "1" + "}" * 2000, "recursion"),
}


@pytest.mark.parametrize("kind", BAD_SCHEMAS)
def test_schemas_that_cannot_be_followed_are_refused(llm: LLM, kind: str) -> None:
    schema, message = BAD_SCHEMAS[kind]
    params = SamplingParams(guided_decoding=GuidedDecodingParams(json_schema=schema))
    with pytest.raises(RequestError, match=message):
        llm.generate("abc", params)
    check_point(llm.generate("abc", SamplingParams(max_tokens=200, guided_decoding=FORM)).outputs[0].text)


def test_settings_that_contradict_the_form() -> None:
    for fields in ({"ignore_eos": True}, {"min_tokens": 2}):
        with pytest.raises(ValueError, match="guided_decoding says when"):
            SamplingParams(guided_decoding=FORM, **fields)
    for fields in ({}, {"json_object": True, "json_schema": "{}"}):
        with pytest.raises(ValueError, match="needs one of"):
            GuidedDecodingParams(**fields)


def test_an_engine_without_a_backend_refuses(model_dir: Path) -> None:
    with (
        LLM(model=model_dir, executor="inline", device="cpu", progress=False) as llm,
        pytest.raises(RequestError, match="guided_decoding_backend is None"),
    ):
        llm.generate("abc", SamplingParams(guided_decoding=FORM))


def test_masks_and_ends() -> None:
    decoder = GuidedDecoder(make_tiny_tokenizer(), vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,))
    tokenizer = make_tiny_tokenizer()
    grammar = decoder.compile(GuidedDecodingParams(json_schema='{"type": "boolean"}'))
    other = decoder.compile(GuidedDecodingParams(json_schema='{"type": "boolean"}'))

    def allowed() -> set[int]:
        mask = int.from_bytes(grammar.bitmask(), "little")
        return {token_id for token_id in range(VOCAB_SIZE) if mask >> token_id & 1}

    assert allowed() == {tokenizer.encode(character)[0] for character in "tf"}
    for character in "true":
        assert not grammar.is_complete
        grammar.accept(tokenizer.encode(character)[0])
    assert grammar.is_complete and grammar.error is None and allowed() == {EOS}
    assert not other.is_complete
    other.accept(tokenizer.encode("x")[0])
    assert other.error is not None and not other.is_complete


def test_a_host_one_step_ahead_stays_in_step(model_dir: Path) -> None:
    """Guided sequences come and go among others, for which the host runs ahead: every answer is as without."""
    texts = []
    for run_ahead in (False, True):
        with LLM(
            model=model_dir,
            executor="inline",
            device="cpu",
            max_batch_size=3,
            guided_decoding_backend="llguidance",
            progress=False,
            executor_factory=partial(PyExecutor, run_ahead=run_ahead),
        ) as llm:
            plain, guided = SamplingParams(max_tokens=30), SamplingParams(max_tokens=200, guided_decoding=FORM)
            outputs = llm.generate(["abc", "de", "f", "ghi", "jk", "l"], [plain, plain, guided, plain, guided, plain])
        texts.append([output.outputs[0].text for output in outputs])
        for index in (2, 4):
            check_point(texts[-1][index])
    assert texts[0] == texts[1]
