"""`LLM`: one base model, any adapter, from Python.

Owns the public calls and the lifetime of the engine behind them. Called by users, `serve/` and `cli/`. Knows
prompts and outputs; what an engine does with a request is none of its business.
"""

import sys
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from types import TracebackType
from typing import TypeAlias, overload

from tensorrt_lora.adapters.adapter_report import AdapterReport
from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.adapter_checker import AdapterChecker
from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.engine.executor_client import ExecutorClient
from tensorrt_lora.engine.executor_worker import ExecutorFactory
from tensorrt_lora.engine.inline_executor_client import InlineExecutorClient
from tensorrt_lora.engine.process_executor_client import ProcessExecutorClient
from tensorrt_lora.engine.py_executor import PyExecutor
from tensorrt_lora.llmapi.adapter_calls import AdapterCalls
from tensorrt_lora.llmapi.prompt import PromptDict, PromptInput, split_prompts
from tensorrt_lora.llmapi.request_arguments import LoRAArgument, PromptAdapter, SamplingArgument
from tensorrt_lora.llmapi.request_future import RequestFuture
from tensorrt_lora.llmapi.request_output import RequestError, RequestOutput
from tensorrt_lora.llmapi.request_runner import RequestRunner
from tensorrt_lora.llmapi.response_dispatcher import ResponseDispatcher
from tensorrt_lora.llmapi.tokenizer import Conversation, Tokenizer
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.models.gguf import resolve_checkpoint
from tensorrt_lora.sampling_params import SamplingParams

PromptList: TypeAlias = list[str] | list[list[int]] | list[PromptDict] | list[PromptInput]

_CLIENTS: dict[str, type[InlineExecutorClient] | type[ProcessExecutorClient]] = {
    "inline": InlineExecutorClient,
    "process": ProcessExecutorClient,
}


class LLM:
    """An engine with a base model, and the place to send prompts to. Thread-safe.

        with LLM(model="path/or/hub-id", lora_config=LoraConfig(max_loras=4)) as llm:
            output = llm.generate("Hello", SamplingParams(max_tokens=16))

    The engine stops with the `with` block, on `shutdown`, when the LLM is garbage, or when Python exits.

    Args:
        model: checkpoint directory, .gguf file or hub id.
        args: all settings as one object, instead of as keyword arguments.
        progress: show progress bars while loading; None shows them on a terminal.
        executor_factory: builds the engine.
        fields: fields of `TorchLlmArgs`.

    Raises ValueError for wrong settings and for a checkpoint that cannot be served.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        args: TorchLlmArgs | None = None,
        progress: bool | None = None,
        executor_factory: ExecutorFactory = PyExecutor,
        **fields: object,
    ) -> None:
        self.args = _read_args(args, fields if model is None else {"model": model, **fields})
        self.tokenizer = _load_tokenizer(self.args)
        client: ExecutorClient = _CLIENTS[self.args.executor](
            self.args,
            progress=sys.stderr.isatty() if progress is None else progress,
            executor_factory=executor_factory,
        )
        self.info = client.info
        dispatcher = ResponseDispatcher(client)
        # Runs once: on shutdown, when the LLM is collected, or at the interpreter's exit.
        self._finalizer = weakref.finalize(self, dispatcher.close)
        lora_enabled = self.args.lora_config is not None
        self._runner = RequestRunner(dispatcher, self.tokenizer, lora_enabled=lora_enabled)
        self._adapters = AdapterCalls(dispatcher, lora_enabled=lora_enabled)

    @overload
    def generate(
        self,
        prompts: PromptInput,
        sampling_params: SamplingParams | None = None,
        lora_request: PromptAdapter = None,
        *,
        progress: bool = False,
    ) -> RequestOutput: ...

    @overload
    def generate(
        self,
        prompts: PromptList,
        sampling_params: SamplingArgument = None,
        lora_request: LoRAArgument = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]: ...

    def generate(
        self,
        prompts: PromptInput | PromptList,
        sampling_params: SamplingArgument = None,
        lora_request: LoRAArgument = None,
        *,
        progress: bool = False,
    ) -> RequestOutput | list[RequestOutput]:
        """Answer one prompt, or a list of prompts in one batch and in order.

        Args:
            prompts: text, token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a list of these.
            sampling_params: one for all prompts or one for each; None is greedy with the default length.
            lora_request: the adapter, for all prompts or one for each; None is the base model, and a list of pairs
                `[(a, 0.7), (b, -0.3)]` one combination: the sum of what the adapters add, each times its weight.
            progress: show a progress bar.

        A wrong call raises ValueError before anything runs. A prompt that the engine refuses (too long, an
        adapter that cannot be loaded, ...) raises RequestError if it is the only one. In a list, its output
        has finish reason "error" and `error` set, so that the answers of the others are not lost.
        Raises EngineDeadError when the engine is gone.
        """
        items, single = split_prompts(prompts)
        outputs = self._runner.run(items, sampling_params, lora_request, progress=progress)
        return _only(outputs) if single else outputs

    def generate_async(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        lora_request: PromptAdapter = None,
        *,
        streaming: bool = False,
    ) -> RequestFuture:
        """Start one prompt and return at once; `RequestFuture` waits, awaits, streams and aborts.

        A wrong call raises ValueError here; what the engine refuses raises RequestError from the future.
        """
        return self._runner.start(prompt, sampling_params, lora_request, streaming=streaming)

    @overload
    def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        lora_request: PromptAdapter = None,
        *,
        progress: bool = False,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> RequestOutput: ...

    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        sampling_params: SamplingArgument = None,
        lora_request: LoRAArgument = None,
        *,
        progress: bool = False,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]: ...

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingArgument = None,
        lora_request: LoRAArgument = None,
        *,
        progress: bool = False,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """Answer one conversation, or a list of them, as `generate` does; the rest is as in `chat_prompt`."""
        conversations, single = _split_conversations(messages)
        prompts = [
            self.chat_prompt(
                conversation,
                add_generation_prompt=add_generation_prompt,
                chat_template=chat_template,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        outputs = self._runner.run(prompts, sampling_params, lora_request, progress=progress)
        return _only(outputs) if single else outputs

    def chat_prompt(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> PromptDict:
        """A conversation as a prompt for `generate` and `generate_async`, by the base model's chat template.

        Args:
            conversation: messages such as {"role": "user", "content": "Hello"}.
            add_generation_prompt: end with the start of the assistant's turn.
            chat_template: a Jinja template instead of the tokenizer's own.
            chat_template_kwargs: further variables of the template, such as Qwen3's `enable_thinking`.

        Raises ValueError when there is no template, or it refuses the messages.
        """
        if self.tokenizer is None:
            raise ValueError("chat needs a tokenizer: leave out skip_tokenizer_init")
        text = self.tokenizer.apply_chat_template(
            conversation,
            add_generation_prompt=add_generation_prompt,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
        )
        # The template wrote the special tokens; a second BOS would change the answer.
        return {"prompt": text, "prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)}

    def check_lora(self, lora_request: LoRARequest) -> AdapterReport:
        """Whether the engine can serve an adapter, with all that keeps it from that; runs here, not in the engine.

        Reads the adapter's files, but loads nothing and gives the adapter no id. Raises ValueError when LoRA is off.
        """
        if self.args.lora_config is None:
            raise ValueError("LoRA is off: create the LLM with lora_config=LoraConfig()")
        checker = AdapterChecker(
            self.args.model,
            self.args.lora_config,
            dtype=self.args.dtype,
            device=self.args.device,
            max_bytes=self.args.peft_cache_config.host_cache_size,
        )
        return checker.check(lora_request)

    def load_lora(self, lora_request: LoRARequest, *, pinned: bool = False) -> AdapterStatus:
        """Bring an adapter to host memory, so that requests with it need not wait; others go on meanwhile.

        Needed for an id that was unloaded; any other adapter is loaded by its first request too. An adapter that is
        in memory is not read again. To replace one while it is used, load the new files under another id, send new
        requests there, and unload the old id: requests that run finish on the version they began with.

        Args:
            pinned: never evict it from host memory. The last call counts: without it, a pinned adapter is unpinned.

        Raises AdapterError (a ValueError) with all reasons and a `kind` for an adapter that cannot be served,
        ValueError when LoRA is off, EngineDeadError when the engine is gone.
        """
        return self.load_lora_async(lora_request, pinned=pinned).result()

    def load_lora_async(self, lora_request: LoRARequest, *, pinned: bool = False) -> "Future[AdapterStatus]":
        """As `load_lora`, at once: the future has the status or raises. To cancel it does not stop the load."""
        return self._adapters.load(lora_request, pinned=pinned)

    def unload_lora(self, lora_int_id: int) -> None:
        """Give an adapter out no more, and free its host memory and its slot once its last user is gone.

        Requests that run or wait with it are served; new ones with the id are refused until it is loaded again. Raises
        ValueError for an id that stands for no adapter, EngineDeadError when the engine is gone.
        """
        self._adapters.unload(lora_int_id).result()

    def list_loras(self) -> list[AdapterStatus]:
        """Every adapter that an id stands for, in order of ids; then combinations in memory and unloaded versions that
        are still in use. Raises EngineDeadError when the engine is gone."""
        return self._adapters.list().result()

    def stats(self) -> EngineStats:
        """The engine's figures as of now. Raises EngineDeadError when the engine is gone."""
        return self._adapters.stats().result()

    def shutdown(self) -> None:
        """Stop the engine and wait for its end; requests still running fail. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()


def _read_args(args: TorchLlmArgs | None, fields: dict[str, object]) -> TorchLlmArgs:
    if args is None:
        return TorchLlmArgs.model_validate(fields)
    if fields:
        raise ValueError(f"args=... holds all settings: move {sorted(fields)} into it")
    return args


def _load_tokenizer(args: TorchLlmArgs) -> Tokenizer | None:
    if args.skip_tokenizer_init:
        return None
    source = args.model if args.tokenizer is None else args.tokenizer
    return Tokenizer.from_pretrained(str(resolve_checkpoint(source, with_weights=False)))


def _split_conversations(messages: Conversation | Sequence[Conversation]) -> tuple[list[Conversation], bool]:
    """The conversations as a list, and whether there was just one."""
    if not isinstance(messages, (list, tuple)):
        raise ValueError(f"messages must be a list of dicts, or a list of such lists, got {messages!r}")
    if messages and all(isinstance(message, Mapping) for message in messages):
        return [messages], True
    return list(messages), False


def _only(outputs: list[RequestOutput]) -> RequestOutput:
    [output] = outputs
    if output.error is not None:
        raise RequestError(output.error, output.adapter_error_kind)
    return output
