"""Requests and stand-in adapters for tests of the scheduler, the KV cache manager and the sampler."""

import itertools
from dataclasses import dataclass

from tensorrt_lora.engine.generation_request import FinishReason
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.sampling_params import SamplingParams

_arrivals = itertools.count()


@dataclass(frozen=True)
class FakeAdapter:
    """What the scheduler and the KV cache manager read of an `AdapterHandle`."""

    adapter_id: int
    version: str = "v1"
    num_pages: int = 1
    name: str = "fake"
    parts: tuple[int, ...] = ()

    @property
    def key(self) -> AdapterKey:
        return AdapterKey(self.adapter_id, self.version)


def append_token(request: LlmRequest, token_id: int) -> FinishReason | None:
    """A token that is sampled and known at once."""
    request.reserve_token()
    return request.resolve_token(token_id)


def make_request(
    prompt: int | list[int],
    *,
    adapter: FakeAdapter | None = None,
    seed: int = 0,
    eos_token_ids: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    **sampling: object,
) -> LlmRequest:
    """A request of these (or that many) prompt tokens, the next arrival, and `sampling` as its settings."""
    arrival = next(_arrivals)
    request = LlmRequest(
        request_id=arrival,
        prompt_token_ids=list(range(prompt)) if isinstance(prompt, int) else prompt,
        sampling_params=SamplingParams(**sampling),
        adapter=adapter,
        seed=seed,
        arrival=arrival,
        eos_token_ids=eos_token_ids,
    )
    for token_id in output:
        append_token(request, token_id)
    return request
