"""From prompts and settings to running requests.

Owns request ids and the order of things: check the whole call, tokenize, then start. Called by `LLM`, from any
thread. Does not know where the engine runs.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import track

from tensorrt_lora.engine.generation_request import GenerationRequest
from tensorrt_lora.llmapi.output_builder import OutputBuilder
from tensorrt_lora.llmapi.prompt import Prompt, read_prompt
from tensorrt_lora.llmapi.request_arguments import (
    LoRAArgument,
    PromptAdapter,
    SamplingArgument,
    adapter_per_prompt,
    read_lora_request,
    read_sampling_params,
    sampling_per_prompt,
)
from tensorrt_lora.llmapi.request_future import RequestFuture
from tensorrt_lora.llmapi.request_output import RequestOutput
from tensorrt_lora.llmapi.response_dispatcher import ResponseDispatcher
from tensorrt_lora.llmapi.sent_adapter import sent_adapter
from tensorrt_lora.llmapi.tokenizer import Tokenizer
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tensorrt_lora.sampling_params import SamplingParams


class RequestRunner:
    """Starts requests, one by one or as a list to wait for. Raises ValueError for wrong calls."""

    def __init__(self, dispatcher: ResponseDispatcher, tokenizer: Tokenizer | None, *, lora_enabled: bool) -> None:
        self._dispatcher = dispatcher
        self._tokenizer = tokenizer
        self._lora_enabled = lora_enabled
        self._request_ids = itertools.count()

    def start(
        self,
        prompt: object,
        sampling_params: SamplingParams | None,
        lora_request: PromptAdapter,
        *,
        streaming: bool,
    ) -> RequestFuture:
        """Start one request; `prompt` is any `PromptInput`."""
        params = read_sampling_params(sampling_params, has_tokenizer=self._tokenizer is not None)
        adapter = read_lora_request(lora_request, lora_enabled=self._lora_enabled)
        return self._submit(read_prompt(prompt, self._tokenizer), params, adapter, streaming=streaming)

    def run(
        self,
        prompts: Sequence[object],
        sampling_params: SamplingArgument,
        lora_request: LoRAArgument,
        *,
        progress: bool,
    ) -> list[RequestOutput]:
        """Run a list of requests to their ends, failed ones too, in order. Nothing runs if the call is wrong."""
        count = len(prompts)
        params = sampling_per_prompt(sampling_params, count, has_tokenizer=self._tokenizer is not None)
        adapters = adapter_per_prompt(lora_request, count, lora_enabled=self._lora_enabled)
        tokenized = [read_prompt(prompt, self._tokenizer) for prompt in prompts]
        futures: list[RequestFuture] = []
        try:
            for arguments in zip(tokenized, params, adapters, strict=True):
                futures.append(self._submit(*arguments, streaming=False))
            console = Console(stderr=True)
            waiting = track(futures, "Generating", console=console, disable=not progress)
            return [future.wait() for future in waiting]
        finally:
            # After Ctrl-C nobody will read the rest; requests that are done stay as they are.
            for future in futures:
                future.abort()

    def _submit(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None,
        lora_request: LoRARequest | WeightedLoRARequests | None,
        *,
        streaming: bool,
    ) -> RequestFuture:
        request = GenerationRequest(
            request_id=next(self._request_ids),
            prompt_token_ids=prompt.token_ids,
            sampling_params=sampling_params or SamplingParams(),
            lora_request=lora_request,
        )
        builder = OutputBuilder(request, prompt=prompt.text, tokenizer=self._tokenizer, streaming=streaming)
        future = RequestFuture(builder, streaming=streaming, on_abort=self._dispatcher.abort)
        self._dispatcher.submit(replace(request, lora_request=sent_adapter(lora_request)), future)
        return future
