"""The public calls, on an engine that answers with the prompt itself (see `ToyExecutor`)."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.llmapi.request_output import RequestError
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tensorrt_lora.sampling_params import SamplingParams
from tests.support.tiny_adapters import config_fields, find_sites, random_tensors, write_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model
from tests.support.toy_executor import CRASH_TOKEN, MAX_SEQ_LEN, RefusingExecutor, ToyExecutor

NEXT = LoRARequest("next", 1, "adapters/next")  # the toy's adapter 1 answers with the next letters
MISSING = LoRARequest("nowhere", 2, "missing")
THREE, FOREVER = SamplingParams(max_tokens=3), SamplingParams(max_tokens=10**6)
MakeLLM = Callable[..., LLM]


def test_one_prompt(llm: LLM) -> None:
    output = llm.generate("abc")
    [completion] = output.outputs
    assert completion.text == ("abc" * 11)[:32]
    assert (completion.finish_reason, len(completion.token_ids)) == ("length", 32)
    assert (output.prompt, output.finished, output.lora_request) == ("abc", True, None)
    assert (output.usage.prompt_tokens, output.usage.completion_tokens) == (3, 32)


def test_every_form_of_a_prompt(llm: LLM) -> None:
    assert llm.tokenizer is not None
    token_ids = llm.tokenizer.encode("abc")
    prompts = ["abc", token_ids, {"prompt": "abc"}, {"prompt_token_ids": token_ids}]
    for prompt in prompts:
        assert llm.generate(prompt, THREE).outputs[0].text == "abc"
    assert [one.outputs[0].text for one in llm.generate(prompts, THREE)] == ["abc"] * 4


def test_a_list_keeps_its_order_and_its_adapters(llm: LLM) -> None:
    prompts = ["abc", "lmn", "x", "hij"]
    params = [SamplingParams(max_tokens=length) for length in (3, 1, 5, 2)]
    outputs = llm.generate(prompts, params, [None, NEXT, NEXT, None])
    assert [one.outputs[0].text for one in outputs] == ["abc", "m", "yyyyy", "hi"]
    assert [one.lora_request for one in outputs] == [None, NEXT, NEXT, None]
    assert [one.outputs[0].text for one in llm.generate(prompts, THREE, NEXT)] == ["bcd", "mno", "yyy", "ijk"]
    assert llm.generate([]) == []


def test_combinations_of_adapters(llm: LLM) -> None:
    pairs = [(NEXT, 3.0), (LoRARequest("second", 2, "adapters/second"), -1.0)]  # adds 3 - 2
    combined = WeightedLoRARequests(tuple(pairs))
    output = llm.generate("abc", THREE, pairs)
    assert (output.outputs[0].text, output.lora_request) == ("bcd", combined)
    outputs = llm.generate(["abc", "abc"], THREE, pairs)
    assert [one.lora_request for one in outputs] == [combined, combined]
    outputs = llm.generate(["abc", "abc", "abc"], THREE, [None, pairs, [(NEXT, 2)]])
    assert [one.outputs[0].text for one in outputs] == ["abc", "bcd", "cde"]
    assert llm.generate_async("abc", THREE, pairs).result().outputs[0].text == "bcd"
    assert llm.chat([{"role": "user", "content": "Hi"}], THREE, pairs).lora_request == combined


def test_an_adapter_can_be_checked_beside_the_running_engine(tmp_path: Path) -> None:
    model_dir = save_tiny_model(tmp_path / "model", "qwen3")
    (model_dir / "model.safetensors").unlink()  # the toy has no weights, and the check needs none
    tensors = random_tensors(find_sites(make_tiny_model("qwen3")), ("q_proj",), 4)
    adapter = write_adapter(tmp_path / "adapter", tensors, config_fields(4, ["q_proj"]))
    fields = {"executor": "inline", "executor_factory": ToyExecutor, "dtype": "bfloat16"}
    with LLM(model_dir, lora_config=LoraConfig(max_lora_rank=4), **fields) as llm:
        report = llm.check_lora(LoRARequest("good", 1, str(adapter)))
        assert report.ok and (report.max_rank, report.dtype, len(report.modules)) == (4, "bfloat16", 2)
        assert not llm.check_lora(LoRARequest("gone", 1, str(tmp_path / "gone"))).ok
    with LLM(model_dir, lora_config=LoraConfig(max_lora_rank=3), **fields) as llm:
        assert "rank 4 is above max_lora_rank=3" in llm.check_lora(LoRARequest("good", 1, str(adapter))).problems[0]
    with LLM(model_dir, lora_config=LoraConfig(), peft_cache_config={"host_cache_size": 99}, **fields) as llm:
        assert "host_cache_size is 99" in llm.check_lora(LoRARequest("good", 1, str(adapter))).problems[0]
    with LLM(model_dir, **fields) as llm, pytest.raises(ValueError, match="LoRA is off"):
        llm.check_lora(LoRARequest("good", 1, str(adapter)))


def test_changing_what_went_in_or_came_out_changes_no_running_request(llm: LLM) -> None:
    prompt, params = [5, 6], SamplingParams(max_tokens=200, stop="zzz", stop_token_ids=[9])
    future = llm.generate_async(prompt, params, streaming=True)
    first = next(iter(future))
    for changed in (prompt, first.prompt_token_ids, first.outputs[0].token_ids):
        changed[:] = [7]
    params.stop_token_ids.append(6)
    params.stop.append("")
    output = future.result()
    assert output.outputs[0].token_ids == [5, 6] * 100 and output.prompt_token_ids == [5, 6]
    with pytest.raises(ValueError, match="stop holds an empty text"):
        llm.generate([5], params)


def test_a_prompt_or_chat_that_is_no_text_is_a_value_error(llm: LLM) -> None:
    with pytest.raises(ValueError, match="lone surrogate at position 0"):
        llm.generate("\ud800x")
    with pytest.raises(ValueError, match="a conversation is a list of messages"):
        llm.chat(["x"])


def test_several_sequences(llm: LLM) -> None:
    output = llm.generate("abc", SamplingParams(max_tokens=3, n=3, temperature=1.0))
    assert [one.text for one in output.outputs] == ["abc", "bca", "cab"]
    assert output.usage.completion_tokens == 9


def test_logprobs(llm: LLM) -> None:
    output = llm.generate("abc", SamplingParams(max_tokens=2, logprobs=1, prompt_logprobs=0))
    [completion] = output.outputs
    assert completion.logprobs is not None and output.prompt_logprobs is not None
    for token_id, logprobs in zip(completion.token_ids, completion.logprobs, strict=True):
        assert (logprobs[token_id].logprob, logprobs[token_id].rank) == (-0.5, 1)
    assert completion.cumulative_logprob == -1.0
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == 3


def test_stop_strings(llm: LLM) -> None:
    [completion] = llm.generate("one two ", SamplingParams(max_tokens=50, stop=["wo o", "zzz"])).outputs
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("one t", "stop", "wo o")


def test_a_refused_request_fails_alone(llm: LLM) -> None:
    too_long = "a" * (MAX_SEQ_LEN + 1)
    for prompt, adapter, message in [
        (too_long, None, f"{MAX_SEQ_LEN + 1} tokens exceed max_seq_len={MAX_SEQ_LEN}"),
        ("", None, "the prompt is empty"),
        ("abc", MISSING, "'nowhere' is not there"),
    ]:
        with pytest.raises(RequestError, match=message):
            llm.generate(prompt, THREE, adapter)
    outputs = llm.generate(["abc", too_long, "", "abc"], THREE, [None, None, None, MISSING])
    assert [one.outputs[0].finish_reason for one in outputs] == ["length", "error", "error", "error"]
    assert outputs[0].error is None and outputs[3].error == "adapter 'nowhere' is not there"
    assert llm.generate("abc", THREE).outputs[0].text == "abc"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "b"], [THREE]), "sampling_params has 1 entries for 2 prompts"),
        ((["a", "b"], None, [NEXT, None, None]), "lora_request has 3 entries for 2 prompts"),
        (("a", {"max_tokens": 3}), "must be SamplingParams"),
        (("a", None, "next"), "must be a LoRARequest"),
        ((5,), "a prompt is text"),
        ((["a", 1.5],), "got float 1.5"),
    ],
)
def test_wrong_calls_run_nothing(llm: LLM, arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        llm.generate(*arguments)
    assert not isinstance(caught.value, RequestError)
    assert llm.generate_async("a").request_id == 0


def test_adapters_need_lora(make_llm: MakeLLM) -> None:
    with pytest.raises(ValueError, match="LoRA is off"):
        make_llm(lora_config=None).generate("a", lora_request=NEXT)


def test_without_a_tokenizer(make_llm: MakeLLM) -> None:
    llm = make_llm(skip_tokenizer_init=True)
    [completion] = llm.generate([1, 2], THREE).outputs
    assert (completion.text, completion.token_ids) == ("", [1, 2, 1])
    for call in (
        lambda: llm.generate("text"),
        lambda: llm.generate([1], SamplingParams(stop="x")),
        lambda: llm.chat([{"role": "user", "content": "Hi"}]),
    ):
        with pytest.raises(ValueError, match="tokenizer"):
            call()


def test_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(llm.generate(["a", "b"], THREE, progress=True)) == 2
    assert "Generating" in capsys.readouterr().err
    llm.generate(["a", "b"], THREE)
    assert capsys.readouterr().err == ""


def test_chat(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "Hi"}]
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    output = llm.chat(conversation, THREE)
    assert output.prompt == rendered
    outputs = llm.chat([conversation, conversation], THREE, [None, NEXT], add_generation_prompt=False)
    assert [one.prompt for one in outputs] == [rendered.removesuffix("<|im_start|>assistant\n")] * 2
    assert [one.lora_request for one in outputs] == [None, NEXT]
    with pytest.raises(ValueError, match="messages must be a list"):
        llm.chat("Hi")


def test_chat_adds_no_second_bos(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert llm.tokenizer is not None
    hf_tokenizer, bos = llm.tokenizer.hf_tokenizer, "<|endoftext|>"
    encode = hf_tokenizer.encode

    def encode_with_bos(text: str, *, add_special_tokens: bool) -> list[int]:
        return encode(bos * add_special_tokens + text)

    monkeypatch.setattr(hf_tokenizer, "encode", encode_with_bos)
    [bos_id] = encode(bos)
    prompt = llm.chat_prompt([{"role": "user", "content": "Hi"}], chat_template=bos + "{{ messages[0].content }}")
    assert prompt["prompt_token_ids"].count(bos_id) == 1
    assert llm.generate("Hi", THREE).prompt_token_ids.count(bos_id) == 1


def test_async_result_and_stream(llm: LLM) -> None:
    future = llm.generate_async("abc", THREE, NEXT, streaming=True)
    snapshots = list(future)
    assert "".join(one.outputs[0].text_diff for one in snapshots) == "bcd"
    assert [one.finished for one in snapshots] == [False] * (len(snapshots) - 1) + [True]
    assert future.result().outputs[0].text == "bcd"


def test_asyncio(llm: LLM) -> None:
    async def stream(prompt: str) -> str:
        future = llm.generate_async(prompt, SamplingParams(max_tokens=40), streaming=True)
        return "".join([output.outputs[0].text_diff async for output in future])

    async def main() -> list[str]:
        waited = (await llm.generate_async("xyz", THREE)).outputs[0].text
        return [waited, *await asyncio.gather(*(stream(letter) for letter in "abcdefgh"))]

    assert asyncio.run(main()) == ["xyz", *(letter * 40 for letter in "abcdefgh")]


def test_abort(llm: LLM) -> None:
    future = llm.generate_async("abc", FOREVER, streaming=True)
    assert next(iter(future)).outputs[0].text.startswith("a")
    future.abort()
    assert future.result(timeout=0).outputs[0].finish_reason == "abort"
    assert llm.generate("abc", THREE).outputs[0].text == "abc"


def test_many_threads(llm: LLM) -> None:
    answers: dict[int, list[str]] = {}

    def ask(number: int) -> None:
        prompts = [f"{number}:{index}." for index in range(8)]
        futures = [llm.generate_async(prompt, SamplingParams(max_tokens=len(prompt))) for prompt in prompts]
        answers[number] = [future.result().outputs[0].text for future in futures]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {number: [f"{number}:{index}." for index in range(8)] for number in range(8)}


def test_shutdown_ends_everything(make_llm: MakeLLM) -> None:
    with make_llm() as llm:
        future = llm.generate_async("abc", FOREVER)
    with pytest.raises(EngineDeadError, match="was shut down"):
        future.result(timeout=10)
    with pytest.raises(EngineDeadError, match="was shut down: create a new LLM"):
        llm.generate("abc")
    llm.shutdown()


def test_an_llm_nobody_holds_stops_its_engine(tokenizer_dir: Path) -> None:
    llm = LLM(tokenizer_dir, executor="inline", executor_factory=ToyExecutor)
    future = llm.generate_async("abc", FOREVER)
    del llm
    gc.collect()
    with pytest.raises(EngineDeadError, match="was shut down"):
        future.result(timeout=10)


def test_a_broken_engine_fails_all_and_refuses_more(llm: LLM) -> None:
    future = llm.generate_async("abc", FOREVER)
    with pytest.raises(EngineDeadError, match="the toy is broken"):
        llm.generate([CRASH_TOKEN])
    with pytest.raises(EngineDeadError, match="the toy is broken"):
        future.result(timeout=10)
    with pytest.raises(EngineDeadError, match="the toy is broken: create a new LLM"):
        llm.generate("abc")


def test_settings(tokenizer_dir: Path) -> None:
    args = TorchLlmArgs(model=str(tokenizer_dir), executor="inline", max_batch_size=7)
    with LLM(args=args, executor_factory=ToyExecutor) as llm:
        assert llm.args is args and llm.info["max_seq_len"] == MAX_SEQ_LEN
    with pytest.raises(ValueError, match=r"move \['dtype', 'model'\] into it"):
        LLM("model", args=args, dtype="float32", executor_factory=ToyExecutor)
    with pytest.raises(ValueError, match="max_bach_size"):
        LLM(tokenizer_dir, max_bach_size=3, executor_factory=ToyExecutor)
    with pytest.raises(ValueError, match="model"):
        LLM(executor_factory=ToyExecutor)


def test_a_tokenizer_of_its_own(tokenizer_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tokenizer could be loaded"):
        LLM(tmp_path, executor="inline", executor_factory=ToyExecutor)
    fields = {"tokenizer": str(tokenizer_dir), "executor": "inline"}
    with LLM(tmp_path, executor_factory=ToyExecutor, **fields) as llm:
        assert llm.generate("abc", THREE).outputs[0].text == "abc"


def test_engine_process(make_llm: MakeLLM, tokenizer_dir: Path) -> None:
    llm = make_llm(executor="process")
    assert llm.info["pid"] != os.getpid()
    outputs = llm.generate(["abc", "lmn", "x"], THREE, [None, NEXT, [(NEXT, 2.0)]])
    assert [one.outputs[0].text for one in outputs] == ["abc", "mno", "zzz"]
    futures = [llm.generate_async("abc", FOREVER) for _ in range(3)]
    os.kill(int(llm.info["pid"]), signal.SIGKILL)
    for future in futures:
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            future.result(timeout=30)
    with pytest.raises(EngineDeadError, match=r"SIGKILL.*create a new LLM"):
        llm.generate("abc")
    with pytest.raises(ValueError, match="max_batch_size=64 is not to the toy's taste: use 7"):
        LLM(tokenizer_dir, executor_factory=RefusingExecutor)


_SCRIPT = """
import sys
from tensorrt_lora.llmapi.llm import LLM
from tests.support.tiny_adapters import config_fields, find_sites, random_tensors, write_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model
from tests.support.toy_executor import ToyExecutor
llm = LLM(sys.argv[1], executor_factory=ToyExecutor)
print(llm.generate("abc").outputs[0].text, llm.info["pid"])
"""


def test_a_script_without_guard_or_shutdown_ends_cleanly(tokenizer_dir: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    run = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", _SCRIPT, str(tokenizer_dir)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    text, pid = run.stdout.split()
    assert text.startswith("abcabc")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


_OWN_CLASSES = """
import os, sys
from enum import Enum, IntEnum
from tensorrt_lora import LLM, LoraConfig, LoRARequest, SamplingParams
from tests.support.toy_executor import ToyExecutor
class Name(str, Enum):
    NEXT = "next"
class Token(IntEnum):
    A, B = 97, 98
class Long(SamplingParams):
    max_tokens: int = 4
class Mine(LoRARequest):
    pass
llm = LLM(sys.argv[1], executor_factory=ToyExecutor, skip_tokenizer_init=True, lora_config=LoraConfig())
child = os.fork()
if child == 0:
    sys.exit()  # runs the finalisers: the engine is the parent's
os.waitpid(child, 0)
for adapter in (LoRARequest(Name.NEXT, 1, "x"), Mine(Name.NEXT, Token.A - 96, "x")):
    print(llm.generate([Token.A, Token.B], Long(), adapter).outputs[0].token_ids)
"""


def test_classes_of_the_users_script_and_a_forked_child(tokenizer_dir: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _OWN_CLASSES, str(tokenizer_dir)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == ["[98, 99, 98, 99]"] * 2
