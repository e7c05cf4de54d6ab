"""Drives `PyTorchModelEngine` with tokens and adapters of the test's choice, in place of scheduler and sampler."""

from collections.abc import Sequence

import torch

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.kv_cache_manager import KvCacheManager
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.model_engine import PyTorchModelEngine
from tensorrt_lora.engine.model_loader import LoadedModel, load_model
from tensorrt_lora.engine.scheduled_requests import ContextChunk, ScheduledRequests
from tensorrt_lora.lora.adapter_slot_manager import SlotTenant
from tensorrt_lora.sampling_params import SamplingParams


class ForcedDecoding:
    """A batch of sequences that all prefill at once and then decode together, one forced token a step."""

    def __init__(self, args: TorchLlmArgs, loaded: LoadedModel | None = None) -> None:
        self.loaded = loaded or load_model(args, progress=False)
        self.engine = PyTorchModelEngine(args, self.loaded, progress=False)
        self._pages = KvCacheManager(
            num_pages=self.loaded.kv_cache.shape[1],
            page_size=args.kv_cache_config.tokens_per_block,
            enable_block_reuse=False,
        )
        self.requests: list[LlmRequest] = []

    def restart(self) -> None:
        """Drop all sequences and their pages."""
        for request in self.requests:
            self._pages.free(request)
        self.requests = []

    def prefill(self, prompts: Sequence[list[int]], adapters: Sequence[SlotTenant | None]) -> torch.Tensor:
        """Start one sequence per prompt; logits [len(prompts), vocab] after their last tokens."""
        self.requests = [
            LlmRequest(index, list(prompt), SamplingParams(max_tokens=1 << 20), adapter=adapter)
            for index, (prompt, adapter) in enumerate(zip(prompts, adapters, strict=True))
        ]
        for request in self.requests:
            assert self._pages.allocate(request, request.num_tokens)
        chunks = [ContextChunk(request, 0, request.num_tokens) for request in self.requests]
        return self.engine.forward(ScheduledRequests(context=chunks)).logits.clone()

    def decode(self, tokens: Sequence[int], adapters: Sequence[SlotTenant | None] | None = None) -> torch.Tensor:
        """Append one token to each sequence and run one step; logits [n, vocab]. New adapters stay for later steps."""
        for index, (request, token) in enumerate(zip(self.requests, tokens, strict=True)):
            request.output_token_ids.append(token)
            if adapters is not None:
                request.adapter = adapters[index]
            assert self._pages.allocate(request, request.num_tokens)
        return self.engine.forward(ScheduledRequests(generation=list(self.requests))).logits.clone()
