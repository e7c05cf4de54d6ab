"""`LLM`: one base model, any adapter, from Python.

Owns the public calls and the lifetime of the engine behind them. Called by users, `serve/` and `cli/`. Knows prompts
and outputs; what an engine does with a request is none of its business.
"""

import itertools
import sys
import weakref
from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import overload

from rich.console import Console
from rich.progress import track

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.executor_worker import ExecutorFactory
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.engine.inline_executor_client import InlineExecutorClient
from tensorrt_lora.engine.process_executor_client import ProcessExecutorClient
from tensorrt_lora.engine.py_executor import PyExecutor
from tensorrt_lora.llmapi.output_builder import OutputBuilder
from tensorrt_lora.llmapi.prompt import (
    Prompt,
    PromptDict,
    PromptInput,
    is_single_prompt,
    one_per_prompt,
    read_prompt,
)
from tensorrt_lora.llmapi.request_future import RequestFuture
from tensorrt_lora.llmapi.request_output import RequestError, RequestOutput
from tensorrt_lora.llmapi.response_dispatcher import ResponseDispatcher
from tensorrt_lora.llmapi.tokenizer import Conversation, Tokenizer
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.models.gguf import resolve_checkpoint
from tensorrt_lora.sampling_params import SamplingParams


class LLM:
    """An engine with a base model, and a place to send prompts to.

        with LLM(model="path/or/hub-id", lora_config=LoraConfig(max_loras=4)) as llm:
            output = llm.generate("Hello", SamplingParams(max_tokens=16))

    Thread-safe. The engine stops with the `with` block, on `shutdown`, when the LLM is garbage, or when Python exits.

    Args:
        model: checkpoint directory, .gguf file or hub id; short for the field of `TorchLlmArgs`.
        args: all settings as one object, instead of as keyword arguments.
        progress: show progress bars while loading; None shows them on a terminal.
        executor_factory: builds the engine.
        fields: fields of `TorchLlmArgs`.

    Raises ValueError for wrong settings or a checkpoint that cannot be served.
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
        self.args = _read_args(model, args, fields)
        self.tokenizer = _load_tokenizer(self.args)
        client_class = ProcessExecutorClient if self.args.executor == "process" else InlineExecutorClient
        client = client_class(
            self.args,
            progress=sys.stderr.isatty() if progress is None else progress,
            executor_factory=executor_factory,
        )
        self.info = client.info
        self._dispatcher = ResponseDispatcher(client)
        self._request_ids = itertools.count()
        # Runs once: on shutdown, when the LLM is collected, or at the interpreter's exit.
        self._finalizer = weakref.finalize(self, self._dispatcher.close)

    @overload
    def generate(
        self,
        prompts: PromptInput,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        *,
        progress: bool = False,
    ) -> RequestOutput: ...

    @overload
    def generate(
        self,
        prompts: list[str] | list[list[int]] | list[PromptDict] | list[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams | None] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]: ...

    def generate(
        self,
        prompts: PromptInput | list[str] | list[list[int]] | list[PromptDict] | list[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams | None] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        *,
        progress: bool = False,
    ) -> RequestOutput | list[RequestOutput]:
        """Answer one prompt, or a list of prompts in one batch and in order.

        Args:
            prompts: text, token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a list of these.
            sampling_params: one for all prompts or one for each; None is greedy with the default length.
            lora_request: the adapter, for all prompts or one for each; None is the base model.
            progress: show a progress bar.

        A wrong call raises ValueError before anything runs. A prompt that the engine refuses, such as one that is
        too long or whose adapter cannot be loaded, raises RequestError when it is the only one; in a list its output
        has finish reason "error" and `error` set, so that the others' answers are not lost.
        Raises EngineDeadError when the engine is gone.
        """
        if is_single_prompt(prompts):
            output = self._generate_all([prompts], sampling_params, lora_request, progress=progress)[0]
            if output.error is not None:
                raise RequestError(output.error)
            return output
        if not isinstance(prompts, (list, tuple)):
            read_prompt(prompts, self.tokenizer)  # Raises: it is neither a prompt nor a list of them.
        return self._generate_all(prompts, sampling_params, lora_request, progress=progress)

    def generate_async(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        *,
        streaming: bool = False,
    ) -> RequestFuture:
        """Start one prompt and return at once; see `RequestFuture` for waiting, `await`, streaming and abort.

        Raises ValueError for a wrong call; a request that the engine refuses raises RequestError from the future.
        """
        return self._start(read_prompt(prompt, self.tokenizer), sampling_params, lora_request, streaming)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams | None] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        *,
        progress: bool = False,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """Answer one conversation, or a list of them, as `generate` does; see `chat_prompt` for the template."""
        single = bool(messages) and isinstance(messages[0], Mapping)
        prompts: list[PromptInput] = [
            self.chat_prompt(
                conversation,
                add_generation_prompt=add_generation_prompt,
                chat_template=chat_template,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in ([messages] if single else messages)
        ]
        return self.generate(
            prompts[0] if single else prompts, sampling_params, lora_request, progress=progress
        )

    def chat_prompt(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> PromptDict:
        """A conversation as a prompt for `generate` or `generate_async`, by the base model's chat template.

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

    def _generate_all(
        self,
        prompts: Sequence[object],
        sampling_params: SamplingParams | Sequence[SamplingParams | None] | None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
        *,
        progress: bool,
    ) -> list[RequestOutput]:
        params = one_per_prompt("sampling_params", sampling_params, len(prompts))
        adapters = one_per_prompt("lora_request", lora_request, len(prompts))
        requests = list(zip(prompts, params, adapters, strict=True))
        for _, param, adapter in requests:
            self._check_call(param, adapter)
        read = [read_prompt(prompt, self.tokenizer) for prompt in prompts]
        futures: list[RequestFuture] = []
        try:
            for prompt, param, adapter in zip(read, params, adapters, strict=True):
                futures.append(self._start(prompt, param, adapter, False))
            console = Console(stderr=True)
            waiting = track(futures, "Generating", console=console, disable=not progress)
            return [future.wait() for future in waiting]
        finally:
            # After Ctrl-C nobody will read the rest. Does nothing to requests that are done.
            for future in futures:
                future.abort()

    def _start(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None,
        lora_request: LoRARequest | None,
        streaming: bool,
    ) -> RequestFuture:
        self._check_call(sampling_params, lora_request)
        request = GenerationRequest(
            request_id=next(self._request_ids),
            prompt_token_ids=prompt.token_ids,
            sampling_params=sampling_params or SamplingParams(),
            lora_request=lora_request,
        )
        builder = OutputBuilder(request, prompt=prompt.text, tokenizer=self.tokenizer, streaming=streaming)
        future = RequestFuture(builder, streaming=streaming, on_abort=self._dispatcher.abort)
        if not prompt.token_ids:
            error = "the prompt has no tokens: give at least one"
            future.deliver(GenerationResponse(request.request_id, finish_reason="error", error=error))
        else:
            self._dispatcher.submit(request, future)
        return future

    def _check_call(self, sampling_params: SamplingParams | None, lora_request: LoRARequest | None) -> None:
        if not isinstance(sampling_params, (SamplingParams, type(None))):
            raise ValueError(f"sampling_params must be SamplingParams, got {sampling_params!r}")
        if not isinstance(lora_request, (LoRARequest, type(None))):
            raise ValueError(
                f"lora_request must be a LoRARequest, or None for the base model, got {lora_request!r}"
            )
        if lora_request is not None and self.args.lora_config is None:
            raise ValueError(
                f"adapter {lora_request.lora_name!r} asked for, but LoRA is off: create the LLM with "
                "lora_config=LoraConfig()"
            )
        if sampling_params is not None and sampling_params.stop and self.tokenizer is None:
            raise ValueError(
                f"stop={sampling_params.stop!r} is text, but the LLM has no tokenizer: use stop_token_ids, or leave "
                "out skip_tokenizer_init"
            )


def _read_args(
    model: str | PathLike[str] | None, args: TorchLlmArgs | None, fields: dict[str, object]
) -> TorchLlmArgs:
    given = fields if model is None else {"model": model, **fields}
    if args is None:
        return TorchLlmArgs.model_validate(given)
    if given:
        raise ValueError(f"args=... holds all settings: move {sorted(given)} into it")
    return args


def _load_tokenizer(args: TorchLlmArgs) -> Tokenizer | None:
    if args.skip_tokenizer_init:
        return None
    return Tokenizer.from_pretrained(args.tokenizer or str(resolve_checkpoint(args.model)))
