"""The engine: requests in, tokens out, one step at a time.

Driven by `executor_worker.run_loop`, in a thread or in a process of its own. Owns the lives of requests and of the
adapters they hold; what runs when is the scheduler's affair, how it runs the model engine's.
"""

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterErrorKind
from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.adapters.adapter_store import AdapterStore
from tensorrt_lora.adapters.combined_adapter import AdapterCombiner
from tensorrt_lora.config.guided_decoding_params import GuidedDecodingParams
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.adapter_capacity import BaseOnlyCapacity
from tensorrt_lora.engine.adapter_control import AdapterControl, adapter_failure
from tensorrt_lora.engine.control_messages import ControlReply, ControlRequest, GetStats
from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.engine.guided_decoder import GuidedDecoder
from tensorrt_lora.engine.kv_cache_manager import KvCacheManager
from tensorrt_lora.engine.llm_request import LlmRequest, RequestState, create_llm_requests
from tensorrt_lora.engine.model_engine import PyTorchModelEngine, StepOutput
from tensorrt_lora.engine.model_loader import LoadedModel, load_model
from tensorrt_lora.engine.prompt_logprobs import extend_prompt_logprobs
from tensorrt_lora.engine.sampler import PendingSamples, SampledToken, Sampler
from tensorrt_lora.engine.scheduled_requests import ScheduledRequests
from tensorrt_lora.engine.scheduler import Scheduler
from tensorrt_lora.engine.slot_uploads import SlotUploads
from tensorrt_lora.engine.token_grammar import TokenGrammar
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.models.dequantized_parameters import DequantizedParameters
from tensorrt_lora.utils.device import pin_memory_available

_PROMPT_LOGITS_AT_ONCE = 256  # 150 MB in float32 at a vocabulary of 150,000
_ADAPTER_WAIT_S = 0.01  # how long an idle step waits for the loader before it looks at the inbox again


@dataclass(slots=True)
class _AwaitedAdapter:
    """A request whose adapter is on its way from disk."""

    message: GenerationRequest
    arrival: int
    handle: Future[AdapterHandle]


@dataclass(slots=True)
class _LiveRequest:
    """The unfinished sequences of one request, and the adapter they share."""

    sequences: list[LlmRequest]
    handle: AdapterHandle | None


@dataclass(slots=True)
class _InFlightStep:
    """A step that the device has been given, and whose tokens the host has not seen yet."""

    output: StepOutput
    samples: PendingSamples


class PyExecutor:
    """One model with its adapters, serving any number of requests.

    Where steps run in CUDA graphs the host runs one step ahead: it queues step n + 1, whose input tokens the device
    takes from step n's sampler, before it waits for the tokens of step n. A sequence that turns out to have ended in
    step n has a row in step n + 1 whose result is dropped.

    Whatever is wrong with a request ends that request with finish reason "error"; the loop goes on.

    Args:
        loaded: the model that `load_model` gave for the same `args`; None loads it here.
        engine: made for the same `args` and `loaded`; None makes it here.
        read_adapter: where adapters come from; None reads PEFT directories. Raises AdapterError.
        run_ahead: queue a step before the last one's tokens are known; None does so where there are CUDA graphs.

    Raises:
        ValueError: the arguments, the checkpoint and the device do not fit together.
    """

    def __init__(
        self,
        args: TorchLlmArgs,
        *,
        progress: bool = False,
        loaded: LoadedModel | None = None,
        engine: PyTorchModelEngine | None = None,
        read_adapter: Callable[[LoRARequest], AdapterWeights] | None = None,
        run_ahead: bool | None = None,
    ) -> None:
        assert engine is None or loaded is not None, "an engine comes with the model it was made for"
        loaded = loaded or load_model(args, progress=progress)
        self._engine = engine or PyTorchModelEngine(args, loaded, progress=progress)
        self._seed = args.seed
        self._eos_token_ids = loaded.config.eos_token_ids
        self._guided_decoder = (
            GuidedDecoder.for_model(args, vocab_size=loaded.config.vocab_size, eos_token_ids=self._eos_token_ids)
            if args.guided_decoding_backend is not None
            else None
        )
        self._sampler = Sampler()
        self._run_ahead = self._engine.graph_runner.enabled if run_ahead is None else run_ahead
        self._in_flight: _InFlightStep | None = None
        self.kv_cache_manager = KvCacheManager(
            num_pages=loaded.kv_cache.shape[1],
            page_size=args.kv_cache_config.tokens_per_block,
            enable_block_reuse=args.kv_cache_config.enable_block_reuse,
        )
        self._slots = loaded.lora_manager.slot_manager if loaded.lora_manager is not None else None
        self.scheduler = Scheduler(
            max_batch_size=args.max_batch_size,
            max_num_tokens=args.max_num_tokens,
            max_seq_len=loaded.max_seq_len,
            vocab_size=loaded.config.vocab_size,
            enable_chunked_prefill=args.enable_chunked_prefill,
            kv_cache_manager=self.kv_cache_manager,
            adapter_capacity=self._slots or BaseOnlyCapacity(),
            max_adapter_wait_iters=args.scheduler_config.max_adapter_wait_iters,
        )
        self.adapter_store = _create_adapter_store(args, loaded, read_adapter)
        self._adapter_control = AdapterControl(self.adapter_store, self._slots)
        self._slot_uploads = SlotUploads(loaded.lora_manager) if loaded.lora_manager is not None else None
        self._awaited: list[_AwaitedAdapter] = []
        self._live: dict[int, _LiveRequest] = {}
        self._responses: list[GenerationResponse] = []
        self._replies: list[ControlReply] = []
        self._num_steps = 0
        self._arrivals = itertools.count()
        self._info: dict[str, int | str] = {
            "max_seq_len": loaded.max_seq_len,
            "vocab_size": loaded.config.vocab_size,
            "dtype": str(loaded.dtype).removeprefix("torch."),
            "device": str(loaded.device),
            "kv_pages": self.kv_cache_manager.total_pages,
        }

    @property
    def info(self) -> Mapping[str, int | str]:
        """What the front may want to know of the running engine."""
        return self._info

    @property
    def has_work(self) -> bool:
        waits = self._awaited or self._adapter_control.pending
        news = self._responses or self._replies
        return bool(waits or news or self._in_flight or self.scheduler.has_unfinished)

    def enqueue(self, request: GenerationRequest) -> None:
        """Take a request; it runs once its adapter is in host memory. Never raises for a bad request."""
        arrival = next(self._arrivals)
        if request.lora_request is None:
            self._start(request, arrival, None)
        elif self.adapter_store is None:
            self._refuse(
                request.request_id,
                f"adapter {request.lora_request.name!r} was asked for, but the engine runs without LoRA; "
                f"set lora_config=LoraConfig(...)",
            )
        else:
            handle = self.adapter_store.acquire(request.lora_request)
            self._awaited.append(_AwaitedAdapter(request, arrival, handle))

    def abort(self, request_id: int) -> None:
        """End a request in whatever state it is; unknown and finished ones are left alone."""
        for awaited in self._awaited:
            if awaited.message.request_id == request_id:
                assert self.adapter_store is not None
                self._awaited.remove(awaited)
                self.adapter_store.discard(awaited.handle)
                self._responses.append(GenerationResponse(request_id, finish_reason="abort"))
                return
        live = self._live.get(request_id)
        if live is not None:
            for sequence in list(live.sequences):
                self.scheduler.abort(sequence)
                self._respond(sequence, GenerationResponse(request_id, sequence.sequence_index))

    def control(self, request: ControlRequest) -> None:
        """Take a call; its reply comes from `take_replies`."""
        if isinstance(request, GetStats):
            self._replies.append(ControlReply(request.call_id, self.stats()))
            return
        reply = self._adapter_control.take(request)
        self._adapter_control.free_slots()
        if reply is not None:
            self._replies.append(reply)

    def take_replies(self) -> list[ControlReply]:
        """The answers to calls that are there, each once."""
        replies, self._replies = [*self._replies, *self._adapter_control.take_replies()], []
        return replies

    def step(self) -> list[GenerationResponse]:
        """Queue one forward if anything can run, and return what there is to tell."""
        self._start_awaited()
        if self.scheduler.has_unfinished or self._in_flight is not None:
            self._run(self.scheduler.schedule())
        elif not (self._responses or self._replies):
            self._wait_for_adapters()
        self._adapter_control.free_slots()
        responses, self._responses = self._responses, []
        return responses

    def stats(self) -> EngineStats:
        """The figures as of now; between steps."""
        pages, store, slots = self.kv_cache_manager.stats(), self.adapter_store, self._slots
        running = sum(
            any(sequence.state is not RequestState.WAITING for sequence in live.sequences)
            for live in self._live.values()
        )
        replays = self._engine.graph_runner.num_replays
        return EngineStats(
            requests_running=running,
            requests_waiting=len(self._live) - running + len(self._awaited),
            preemptions=self.scheduler.num_preemptions,
            kv_pages_used=pages.held_pages,
            kv_pages_total=pages.total_pages,
            prefix_queried_tokens=pages.queried_tokens,
            prefix_hit_tokens=pages.hit_tokens,
            graph_steps=replays,
            eager_steps=self._num_steps - replays,
            adapter_loads=store.num_loads if store else 0,
            adapter_load_seconds=store.load_seconds if store else 0.0,
            host_evictions=store.num_evictions if store else 0,
            slot_evictions=slots.num_evictions if slots else 0,
            slots_used=len(slots.resident()) if slots else 0,
            slots_total=slots.num_slots if slots else 0,
            adapter_host_bytes=store.host_bytes if store else 0,
            adapter_host_bytes_max=store.max_bytes if store else 0,
        )

    def shutdown(self) -> None:
        """Stop the adapter loader; requests still running get no answer."""
        if self.adapter_store is not None:
            self.adapter_store.close()

    # From message to running sequences

    def _start_awaited(self) -> None:
        """Let go of the requests whose adapter is on the device, or could not be read."""
        arrived = [awaited for awaited in self._awaited if awaited.handle.done()]
        failed = [awaited for awaited in arrived if awaited.handle.exception() is not None]
        handles = [(awaited, awaited.handle.result()) for awaited in arrived if awaited not in failed]
        ready = self._advance_uploads({handle.key: handle for _, handle in handles})
        for awaited in failed:
            self._awaited.remove(awaited)
            self._refuse_adapter(awaited)
        for awaited, handle in handles:
            if handle.key in ready:
                self._awaited.remove(awaited)
                self._start(awaited.message, awaited.arrival, handle)

    def _advance_uploads(self, handles: dict[AdapterKey, AdapterHandle]) -> set[AdapterKey]:
        if self._slot_uploads is None or not (handles or self._slot_uploads.has_any):
            return set()
        is_idle = not self.scheduler.has_unfinished and self._in_flight is None
        return self._slot_uploads.advance(handles, self.scheduler.active_adapters, is_idle=is_idle)

    def _refuse_adapter(self, awaited: _AwaitedAdapter) -> None:
        message, error = awaited.message, awaited.handle.exception()
        assert message.lora_request is not None and error is not None
        failure = adapter_failure(message.lora_request, error)
        kind = failure.kind if isinstance(failure, AdapterError) else None
        self._refuse(message.request_id, str(failure), kind)

    def _wait_for_adapters(self) -> None:
        loading = [*(awaited.handle for awaited in self._awaited), *self._adapter_control.pending]
        if loading:
            wait(loading, _ADAPTER_WAIT_S, FIRST_COMPLETED)

    def _start(self, message: GenerationRequest, arrival: int, handle: AdapterHandle | None) -> None:
        try:
            grammar = self._compile_grammar(message.sampling_params.guided_decoding)
            sequences = create_llm_requests(
                message,
                adapter=handle,
                eos_token_ids=self._eos_token_ids,
                engine_seed=self._seed,
                arrival=arrival,
                grammar=grammar,
            )
            refusal = self.scheduler.refusal(sequences[0])
        except ValueError as error:
            refusal = str(error)
        if refusal is not None:
            self._release_adapter(handle)
            self._refuse(message.request_id, refusal)
            return
        for sequence in sequences:
            self.scheduler.add(sequence)
        self._live[message.request_id] = _LiveRequest(sequences, handle)

    def _compile_grammar(self, params: GuidedDecodingParams | None) -> TokenGrammar | None:
        if params is None:
            return None
        if self._guided_decoder is None:
            raise ValueError("guided_decoding was asked for, but guided_decoding_backend is None: set it")
        return self._guided_decoder.compile(params)

    def _refuse(self, request_id: int, error: str, kind: AdapterErrorKind | None = None) -> None:
        self._responses.append(GenerationResponse(request_id, finish_reason="error", error=error, error_kind=kind))

    # One step

    def _run(self, scheduled: ScheduledRequests) -> None:
        """Queue this step, then settle the one before it, while this one runs."""
        before, self._in_flight = self._in_flight, None
        if scheduled:
            self._num_steps += 1
            samples_before = before.samples if before is not None else None
            output = self._engine.forward(scheduled, samples_before)
            self._in_flight = _InFlightStep(output, self._sampler.launch(output.logits, scheduled.sampled_requests))
        if before is not None:
            self._settle(before)
        if self._in_flight is not None:
            self.scheduler.complete_step(scheduled)
            if not (self._run_ahead and self.scheduler.may_run_ahead()):
                step, self._in_flight = self._in_flight, None
                self._settle(step)

    def _settle(self, step: _InFlightStep) -> None:
        """Wait for a step's tokens and tell them; what ended meanwhile is passed over."""
        self._take_prompt_logprobs(step.output)
        for request, sample in zip(step.samples.rows, step.samples.fetch(), strict=True):
            self._take_sample(request, sample)

    def _take_prompt_logprobs(self, output: StepOutput) -> None:
        for rows in output.prompt_rows:
            if rows.request.is_finished:
                continue
            for offset in range(0, len(rows.positions), _PROMPT_LOGITS_AT_ONCE):
                block = slice(offset, offset + _PROMPT_LOGITS_AT_ONCE)
                positions = rows.positions[block]
                logits = self._engine.compute_logits(rows.hidden[block], [rows.request.adapter], [len(positions)])
                error = extend_prompt_logprobs(rows.request, positions, logits)
                if error is not None:
                    self._fail(rows.request, error)
                    break

    def _take_sample(self, request: LlmRequest, sample: SampledToken) -> None:
        if request.is_finished:
            return
        if sample.error is not None:
            self._fail(request, sample.error)
            return
        response = GenerationResponse(request.request_id, request.sequence_index, token_ids=[sample.token_id])
        if sample.logprobs is not None:
            response.logprobs = [sample.logprobs]
        if len(request.output_token_ids) == 1:
            response.num_cached_tokens = request.num_cached_tokens
            if request.sampling_params.prompt_logprobs is not None:
                response.prompt_logprobs = request.prompt_logprobs or [None]
        finish_reason = request.resolve_token(sample.token_id)
        if request.grammar is not None and request.grammar.error is not None:
            self._fail(request, f"guided_decoding failed: {request.grammar.error}")
            return
        if finish_reason is not None:
            self.scheduler.finish(request)
        self._respond(request, response)

    def _fail(self, request: LlmRequest, error: str) -> None:
        self.scheduler.fail(request, error)
        self._respond(request, GenerationResponse(request.request_id, request.sequence_index))

    def _respond(self, request: LlmRequest, response: GenerationResponse) -> None:
        """Queue a response, with the end of the sequence where it has ended; the last one frees the adapter."""
        response.finish_reason = request.finish_reason
        response.stop_reason = request.stop_reason
        response.error = request.error
        self._responses.append(response)
        if request.is_finished:
            live = self._live[request.request_id]
            live.sequences.remove(request)
            if not live.sequences:
                del self._live[request.request_id]
                self._release_adapter(live.handle)

    def _release_adapter(self, handle: AdapterHandle | None) -> None:
        if handle is not None:
            assert self.adapter_store is not None
            self.adapter_store.release(handle)


def _create_adapter_store(
    args: TorchLlmArgs, loaded: LoadedModel, read: Callable[[LoRARequest], AdapterWeights] | None
) -> AdapterStore | None:
    if loaded.lora_config is None or loaded.lora_manager is None:
        return None
    pin_memory = pin_memory_available(loaded.device)
    if read is None:
        read = AdapterReader(
            sites=loaded.lora_manager.sites,
            lora_config=loaded.lora_config,
            dtype=loaded.dtype,
            pin_memory=pin_memory,
            base_parameters=DequantizedParameters(loaded.model),
        ).read
    return AdapterStore(
        read,
        combine=AdapterCombiner(loaded.lora_config.max_lora_rank, pin_memory).combine,
        max_adapters=loaded.lora_config.max_cpu_loras,
        max_bytes=args.peft_cache_config.host_cache_size,
    )
