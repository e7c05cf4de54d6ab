"""`tensorrt-lora generate` on the toy engine, and its options one by one."""

from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tensorrt_lora.cli import generate as module
from tensorrt_lora.cli.generate import pair_prompts, parse_adapters, read_args
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.lora_request import LoRARequest
from tests.support.tiny_models import make_tiny_tokenizer
from tests.support.toy_executor import ToyExecutor

NEXT, MISSING = LoRARequest("next", 1, "a"), LoRARequest("nowhere", 2, "missing")


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    make_tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tokenizer_dir: Path):
    monkeypatch.setattr(module, "LLM", partial(LLM, executor_factory=ToyExecutor, progress=False))
    app = typer.Typer()
    app.command()(module.generate)

    def invoke(*options: str) -> Result:
        return CliRunner().invoke(app, ["--model", str(tokenizer_dir), "--executor", "inline", *options])

    return invoke


def test_every_prompt_with_base_and_each_adapter(run) -> None:
    result = run("--lora", "next=a", "--prompt", "abc", "--prompt", "x", "--max-tokens", "3", "--no-chat")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "[base] 'abc' -> 'abc'",
        "[next] 'abc' -> 'bcd'",
        "[base] 'x' -> 'xxx'",
        "[next] 'x' -> 'yyy'",
    ]


def test_named_adapters(run) -> None:
    options = ["--lora", "next=a", "--prompt", "abc", "--prompt", "x", "--max-tokens", "2", "--no-chat"]
    result = run(*options, "--lora-name", "next", "--lora-name", "base")
    assert result.output.splitlines() == ["[next] 'abc' -> 'bc'", "[base] 'x' -> 'xx'"]


def test_chat_is_the_default_where_there_is_a_template(run) -> None:
    result = run("--prompt", "abc", "--max-tokens", "18")
    assert result.output == "[base] 'abc' -> 'user\\nabc\\nassist'\n"


def test_a_failed_answer_is_shown_and_counts(run) -> None:
    result = run("--lora", "nowhere=missing", "--prompt", "abc", "--max-tokens", "3", "--no-chat")
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "[base] 'abc' -> 'abc'",
        "[nowhere] 'abc' -> \"error: adapter 'nowhere' is not there\"",
    ]


def test_a_terminal_gets_a_table(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Console", partial(module.Console, force_terminal=True, width=60))
    result = run("--prompt", "[b]abc", "--max-tokens", "6", "--no-chat")
    assert "adapter" in result.output and result.output.count("[b]abc") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give at least one --prompt"),
        (["--prompt", "a", "--lora", "next"], "expected NAME=DIR"),
        (["--prompt", "a", "--lora-name", "next"], r"'next' is unknown: use one of \['base'\]"),
    ],
)
def test_mistakes_are_value_errors(run, options: list[str], message: str) -> None:
    result = run(*options)
    assert result.exit_code == 1 and isinstance(result.exception, ValueError)
    with pytest.raises(ValueError, match=message):
        raise result.exception


def test_parse_adapters() -> None:
    assert parse_adapters(["next=a", "nowhere=missing"]) == {"next": NEXT, "nowhere": MISSING}
    assert parse_adapters(["x=a=b"])["x"].path == "a=b"
    for options in (["x"], ["=a"], ["x="], ["base=a"], ["x=a", "x=b"]):
        with pytest.raises(ValueError, match=f"--lora '{options[-1]}'"):
            parse_adapters(options)


def test_pair_prompts() -> None:
    adapters = {"next": NEXT}
    assert pair_prompts(["a", "b"], ["next"], adapters) == [("a", NEXT), ("b", NEXT)]
    assert pair_prompts(["a"], [], adapters) == [("a", None), ("a", NEXT)]
    with pytest.raises(ValueError, match="there are 2 --lora-name for 3 --prompt"):
        pair_prompts(["a", "b", "c"], ["next", "base"], adapters)


def test_options_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text("model: m\ndtype: bfloat16\nlora_config: {max_loras: 3}\n")
    args = read_args(file, {"model": None, "dtype": "float32"}, with_lora=True, overlap=True)
    assert (args.model, args.dtype) == ("m", "float32")
    assert args.lora_config is not None
    assert (args.lora_config.max_loras, args.lora_config.overlap_lora_and_base) == (3, True)


def test_lora_is_on_when_it_is_used() -> None:
    assert read_args(None, {"model": "m"}, with_lora=False, overlap=None).lora_config is None
    assert read_args(None, {"model": "m"}, with_lora=True, overlap=None).lora_config is not None
    with pytest.raises(ValueError, match="give --model, or a --config"):
        read_args(None, {"model": None}, with_lora=False, overlap=None)
