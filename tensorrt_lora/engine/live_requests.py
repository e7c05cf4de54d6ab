"""Requests that the scheduler has, until the last of their sequences ends.

Called by `PyExecutor` and `StepRunner`. Owns what a request holds meanwhile, which is its adapter, and words what
clients are told of its sequences. Decides neither what runs nor how.
"""

from dataclasses import dataclass

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.adapters.adapter_store import AdapterStore
from tensorrt_lora.engine.generation_request import GenerationResponse
from tensorrt_lora.engine.llm_request import LlmRequest, RequestState
from tensorrt_lora.engine.sampler import SampledToken
from tensorrt_lora.engine.scheduler import Scheduler


@dataclass(slots=True)
class _LiveRequest:
    """The unfinished sequences of one request, and the adapter they share."""

    sequences: list[LlmRequest]
    handle: AdapterHandle | None


class LiveRequests:
    """Whatever happens to a sequence comes back as the response to send; its end is in the response.

    Args:
        store: gets back the adapter of a request with its last response; None in an engine without LoRA.
    """

    def __init__(self, scheduler: Scheduler, store: AdapterStore | None) -> None:
        self._scheduler = scheduler
        self._store = store
        self._live: dict[int, _LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def num_running(self) -> int:
        """Requests with at least one sequence in a batch."""
        return sum(
            any(sequence.state is not RequestState.WAITING for sequence in live.sequences)
            for live in self._live.values()
        )

    def add(self, sequences: list[LlmRequest], handle: AdapterHandle | None) -> None:
        """Queue the sequences of one request, which the scheduler does not refuse, with the adapter they share."""
        for sequence in sequences:
            self._scheduler.add(sequence)
        self._live[sequences[0].request_id] = _LiveRequest(sequences, handle)

    def abort(self, request_id: int) -> list[GenerationResponse]:
        """End what is left of a request; nothing happens if it is unknown."""
        live = self._live.get(request_id)
        responses = []
        for sequence in list(live.sequences) if live is not None else ():
            self._scheduler.abort(sequence)
            responses.append(self._complete(sequence, GenerationResponse(request_id, sequence.sequence_index)))
        return responses

    def fail(self, sequence: LlmRequest, error: str) -> GenerationResponse:
        """End a sequence with an error."""
        self._scheduler.fail(sequence, error)
        return self._complete(sequence, GenerationResponse(sequence.request_id, sequence.sequence_index))

    def take_sample(self, sequence: LlmRequest, sample: SampledToken) -> GenerationResponse:
        """Put the token that was drawn for an unfinished sequence in its place."""
        if sample.error is not None:
            return self.fail(sequence, sample.error)
        response = GenerationResponse(sequence.request_id, sequence.sequence_index, token_ids=[sample.token_id])
        if sample.logprobs is not None:
            response.logprobs = [sample.logprobs]
        if len(sequence.output_token_ids) == 1:
            response.num_cached_tokens = sequence.num_cached_tokens
            if sequence.sampling_params.prompt_logprobs is not None:
                response.prompt_logprobs = sequence.prompt_logprobs or [None]
        finish_reason = sequence.resolve_token(sample.token_id)
        if sequence.grammar is not None and sequence.grammar.error is not None:
            return self.fail(sequence, f"guided_decoding failed: {sequence.grammar.error}")
        if finish_reason is not None:
            self._scheduler.finish(sequence)
        return self._complete(sequence, response)

    def _complete(self, sequence: LlmRequest, response: GenerationResponse) -> GenerationResponse:
        """Add the end of the sequence where it has ended; the last one frees the adapter."""
        response.finish_reason = sequence.finish_reason
        response.stop_reason = sequence.stop_reason
        response.error = sequence.error
        if sequence.is_finished:
            live = self._live[sequence.request_id]
            live.sequences.remove(sequence)
            if not live.sequences:
                del self._live[sequence.request_id]
                if live.handle is not None:
                    assert self._store is not None
                    self._store.release(live.handle)
        return response
