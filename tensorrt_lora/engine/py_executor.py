"""The engine: requests in, tokens out, one step at a time.

Driven by `executor_worker.run_loop`, in a thread or in a process of its own. Owns the way of a request from one part to
the next: `AwaitedRequests` until its adapter is there, then `LiveRequests` and the scheduler, whose steps `StepRunner`
runs.
"""

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterErrorKind
from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.adapters.load_pacer import LoadPacer
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.adapter_capacity import BaseOnlyCapacity
from tensorrt_lora.engine.adapter_control import AdapterControl, adapter_failure
from tensorrt_lora.engine.adapter_store_factory import create_adapter_store
from tensorrt_lora.engine.awaited_requests import AwaitedRequest, AwaitedRequests
from tensorrt_lora.engine.control_messages import ControlReply, ControlRequest, GetStats
from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.engine.kv_cache_manager import KvCacheManager
from tensorrt_lora.engine.live_requests import LiveRequests
from tensorrt_lora.engine.llm_request_factory import LlmRequestFactory
from tensorrt_lora.engine.model_engine import PyTorchModelEngine
from tensorrt_lora.engine.model_loader import LoadedModel, load_model
from tensorrt_lora.engine.scheduler import Scheduler
from tensorrt_lora.engine.slot_uploads import SlotUploads
from tensorrt_lora.engine.step_runner import StepRunner
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.utils.device import computes_on_host

_LOAD_PAUSE_RATIO = 4.0  # where the steps run on the loaders' processors: these work a fifth of the time
_ADAPTER_WAIT_S = 0.01  # how long an idle step waits for the loader before it looks at the inbox again


class PyExecutor:
    """One model with its adapters, serving any number of requests.

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
        self._llm_requests = LlmRequestFactory.for_model(args, loaded.config)
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
        on_host = computes_on_host(loaded.device)
        scheduler = self.scheduler  # loader threads must not keep the whole engine alive
        self._load_pacer = LoadPacer(_LOAD_PAUSE_RATIO if on_host else 0.0, lambda: scheduler.has_unfinished)
        self.adapter_store = create_adapter_store(args, loaded, read_adapter, self._load_pacer)
        self._adapter_control = AdapterControl(self.adapter_store, self._slots)
        slot_uploads = SlotUploads(loaded.lora_manager, on_host=on_host) if loaded.lora_manager is not None else None
        self._awaited = AwaitedRequests(self.adapter_store, slot_uploads, self.scheduler)
        self._live = LiveRequests(self.scheduler, self.adapter_store)
        if run_ahead is None:
            run_ahead = self._engine.graph_runner.enabled
        self._steps = StepRunner(self._engine, self.scheduler, self._live, run_ahead=run_ahead)
        self._responses: list[GenerationResponse] = []
        self._replies: list[ControlReply] = []
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
        return bool(waits or news or not self._is_idle)

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
            self._awaited.add(request, arrival)

    def abort(self, request_id: int) -> None:
        """End a request in whatever state it is; unknown and finished ones are left alone."""
        if self._awaited.cancel(request_id):
            self._responses.append(GenerationResponse(request_id, finish_reason="abort"))
        else:
            self._responses += self._live.abort(request_id)

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
        if not self._is_idle:
            self._responses += self._steps.run(self.scheduler.schedule())
        elif not (self._responses or self._replies):
            self._wait_for_adapters()
        self._adapter_control.free_slots()
        responses, self._responses = self._responses, []
        return responses

    def stats(self) -> EngineStats:
        """The figures as of now; between steps."""
        pages, store, slots = self.kv_cache_manager.stats(), self.adapter_store, self._slots
        running = self._live.num_running
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
            eager_steps=self._steps.num_steps - replays,
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
        self._load_pacer.stop()
        if self.adapter_store is not None:
            self.adapter_store.close()

    @property
    def _is_idle(self) -> bool:
        """No request has a step to run, and none is on the device."""
        return not (self.scheduler.has_unfinished or self._steps.has_step_in_flight)

    # From message to running sequences

    def _start_awaited(self) -> None:
        """Let go of the requests whose adapter is on the device, or could not be read."""
        failed, ready = self._awaited.take_arrived(is_idle=self._is_idle)
        for awaited in failed:
            self._refuse_adapter(awaited)
        for awaited in ready:
            self._start(awaited.message, awaited.arrival, awaited.handle.result())

    def _refuse_adapter(self, awaited: AwaitedRequest) -> None:
        message, error = awaited.message, awaited.handle.exception()
        assert message.lora_request is not None and error is not None
        failure = adapter_failure(message.lora_request, error)
        kind = failure.kind if isinstance(failure, AdapterError) else None
        self._refuse(message.request_id, str(failure), kind)

    def _wait_for_adapters(self) -> None:
        loading = [*self._awaited.pending, *self._adapter_control.pending]
        if loading:
            wait(loading, _ADAPTER_WAIT_S, FIRST_COMPLETED)

    def _start(self, message: GenerationRequest, arrival: int, handle: AdapterHandle | None) -> None:
        try:
            sequences = self._llm_requests.create(message, arrival, handle)
            refusal = self.scheduler.refusal(sequences[0])
        except ValueError as error:
            refusal = str(error)
        if refusal is None:
            self._live.add(sequences, handle)
            return
        if handle is not None:
            assert self.adapter_store is not None
            self.adapter_store.release(handle)
        self._refuse(message.request_id, refusal)

    def _refuse(self, request_id: int, error: str, kind: AdapterErrorKind | None = None) -> None:
        self._responses.append(GenerationResponse(request_id, finish_reason="error", error=error, error_kind=kind))
