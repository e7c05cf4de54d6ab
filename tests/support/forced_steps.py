"""Drives a `PyTorchModelEngine` with steps of the test's choice: chunks, decodes or both, of requests with pages."""

import random

from tensorrt_lora.engine.kv_cache_manager import KvCacheManager
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.model_engine import PyTorchModelEngine, StepOutput
from tensorrt_lora.engine.model_loader import LoadedModel
from tensorrt_lora.engine.scheduled_requests import ContextChunk, ScheduledRequests
from tensorrt_lora.lora.adapter_slot_manager import SlotTenant
from tensorrt_lora.sampling_params import SamplingParams


class ForcedSteps:
    """The n-th request of every driver has the same prompt, and the same pages if drivers do the same."""

    def __init__(self, engine: PyTorchModelEngine, loaded: LoadedModel) -> None:
        self.engine = engine
        self.loaded = loaded
        _, num_pages, _, page_size, _, _ = loaded.kv_cache.shape
        self.pages = KvCacheManager(num_pages=num_pages, page_size=page_size, enable_block_reuse=False)
        self._made = 0

    def request(self, length: int, adapter: SlotTenant | None = None, **params: int) -> LlmRequest:
        """A request with a random prompt and the pages for it."""
        rng = random.Random(self._made)
        prompt = [rng.randrange(256) for _ in range(length)]
        request = LlmRequest(self._made, prompt, SamplingParams(max_tokens=1 << 20, **params), adapter=adapter)
        self._made += 1
        assert self.pages.allocate(request, request.num_tokens)
        return request

    def decode(self, *requests: LlmRequest) -> list[LlmRequest]:
        """The same requests, each with one token more, a known one."""
        for request in requests:
            request.output_token_ids.append((7 + 31 * request.num_tokens) % 256)
            assert self.pages.allocate(request, request.num_tokens)
        return list(requests)

    def run(self, *chunks: ContextChunk, generation: list[LlmRequest] | None = None) -> StepOutput:
        """One step."""
        return self.engine.forward(ScheduledRequests(list(chunks), generation or []))


def whole(request: LlmRequest) -> ContextChunk:
    """All of a prompt at once."""
    return ContextChunk(request, 0, request.num_tokens)
