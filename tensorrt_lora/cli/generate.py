"""`tensorrt-lora generate`: some prompts, as the base model and as its adapters, in one batch.

Owns the options and how answers are shown; `LLM` does the work.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.llmapi.prompt import PromptInput
from tensorrt_lora.llmapi.request_output import RequestOutput
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams

BASE = "base"


def generate(
    model: Annotated[
        str | None, typer.Option(help="Checkpoint directory, .gguf file or hub id; may come from --config.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="What to answer. Repeatable.")] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="An adapter and its PEFT directory. Repeatable."),
    ] = None,
    lora_name: Annotated[
        list[str] | None,
        typer.Option(help="Adapter (or 'base') of each prompt in turn, or of all. Left out: every prompt with each."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    chat: Annotated[
        bool | None,
        typer.Option(help="Ask through the chat template. Left out: if the model has one.", show_default=False),
    ] = None,
    dtype: Annotated[Literal["auto", "float32", "bfloat16"] | None, typer.Option()] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option()] = None,
    executor: Annotated[Literal["process", "inline"] | None, typer.Option(help="Where the engine loop runs.")] = None,
    overlap: Annotated[
        bool | None, typer.Option(help="Run LoRA beside the base projections.", show_default=False)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of TorchLlmArgs fields; options override it.")] = None,
) -> None:
    """Answer prompts with the base model and with adapters, all in one batch."""
    adapters = parse_adapters(lora or [])
    jobs = pair_prompts(prompt or [], lora_name or [], adapters)
    fields = {"model": model, "dtype": dtype, "device": device, "executor": executor}
    args = read_args(config, fields, with_lora=bool(adapters), overlap=overlap)
    with LLM(args=args) as llm:
        if chat is None:
            chat = llm.tokenizer is not None and llm.tokenizer.has_chat_template
        prompts: list[PromptInput] = [
            llm.chat_prompt([{"role": "user", "content": text}]) if chat else {"prompt": text} for text, _ in jobs
        ]
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
        outputs = llm.generate(prompts, params, [adapter for _, adapter in jobs])
    show([text for text, _ in jobs], outputs)
    if any(output.error is not None for output in outputs):
        raise typer.Exit(1)


def parse_adapters(options: list[str]) -> dict[str, LoRARequest]:
    """Adapters by name, with ids in order. Raises ValueError for what is not NAME=DIR or is taken."""
    adapters: dict[str, LoRARequest] = {}
    for option in options:
        name, equals, directory = option.partition("=")
        if not (name and equals and directory):
            raise ValueError(f"--lora {option!r}: expected NAME=DIR, such as --lora pirate=adapters/pirate")
        if name == BASE or name in adapters:
            raise ValueError(f"--lora {option!r}: the name {name!r} is taken, choose another")
        adapters[name] = LoRARequest(name, len(adapters) + 1, directory)
    return adapters


def pair_prompts(
    prompts: list[str], names: list[str], adapters: dict[str, LoRARequest]
) -> list[tuple[str, LoRARequest | None]]:
    """(prompt, adapter) of every answer to give; without names, every prompt with base and each adapter.

    Raises ValueError without prompts, for unknown names, and for a number of names that fits nothing.
    """
    if not prompts:
        raise ValueError("there is no prompt: give at least one --prompt")
    choices: dict[str, LoRARequest | None] = {BASE: None, **adapters}
    if not names:
        return [(prompt, adapter) for prompt in prompts for adapter in choices.values()]
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise ValueError(f"--lora-name {unknown[0]!r} is unknown: use one of {list(choices)}, or add --lora")
    if len(names) not in (1, len(prompts)):
        raise ValueError(
            f"there are {len(names)} --lora-name for {len(prompts)} --prompt: give one for all, or one each"
        )
    each = names * len(prompts) if len(names) == 1 else names
    return [(prompt, choices[name]) for prompt, name in zip(prompts, each, strict=True)]


def read_args(
    config: Path | None, fields: dict[str, str | None], *, with_lora: bool, overlap: bool | None
) -> TorchLlmArgs:
    """The engine's settings: the file's, overridden by the options that were given.

    Raises ValueError for wrong settings, and when no model is named anywhere.
    """
    given: dict[str, object] = {name: value for name, value in fields.items() if value is not None}
    if config is None:
        if "model" not in given:
            raise ValueError("there is no model: give --model, or a --config that names one")
        args = TorchLlmArgs.model_validate(given)
    else:
        args = TorchLlmArgs.from_yaml(config, **given)
    if not with_lora and overlap is None:
        return args
    lora_config = args.lora_config or LoraConfig()
    if overlap is not None:
        lora_config = lora_config.model_copy(update={"overlap_lora_and_base": overlap})
    return args.model_copy(update={"lora_config": lora_config})


def show(prompts: list[str], outputs: list[RequestOutput]) -> None:
    """Print the answers: a table on a terminal, else one line for each, with its adapter in front."""
    console = Console()
    rows = [
        (prompt, output.lora_request.name if output.lora_request else BASE, _answer(output))
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    if not console.is_terminal:
        for prompt, name, answer in rows:
            typer.echo(f"[{name}] {prompt!r} -> {answer!r}")
        return
    table = Table("prompt", "adapter", "answer", show_lines=True)
    previous = None
    for prompt, name, answer in rows:
        table.add_row(Text("" if prompt == previous else prompt), name, Text(answer))
        previous = prompt
    console.print(table)


def _answer(output: RequestOutput) -> str:
    return f"error: {output.error}" if output.error is not None else output.outputs[0].text.strip()
