"""Which requests run in the next step, and with how many tokens.

Called by `PyExecutor` and its parts: `add` (`LiveRequests`), then per step `schedule` and, after the forward,
`complete_step` (`StepRunner`); `finish`, `abort` and `fail` (`LiveRequests`) at any time between. Owns waiting and
running requests; knows pages and adapters through their managers only, and no tensors.
"""

from bisect import insort

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.engine.adapter_admission import AdapterAdmission
from tensorrt_lora.engine.adapter_capacity import AdapterCapacity
from tensorrt_lora.engine.kv_cache_manager import KvCacheManager
from tensorrt_lora.engine.llm_request import LlmRequest, RequestState
from tensorrt_lora.engine.request_limits import RequestLimits
from tensorrt_lora.engine.scheduled_requests import ContextChunk, ScheduledRequests
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey


class Scheduler:
    """Continuous batching in arrival order, with chunked prefill and preemption by recomputation.

    A step holds at most `max_num_tokens` tokens of at most `max_batch_size` requests: every decode first,
    then the prefills under way, then newcomers. A newcomer gets the pages of all its tokens at once, so only
    decodes can run out of pages; then the latest arrival among the running gives back its pages and waits in
    arrival order, to be prefilled again over prompt and output.

    A newcomer whose adapter does not fit beside those of all running requests is passed over. It may be
    overtaken for `max_adapter_wait_iters` steps from the first time on; then nobody behind it starts before
    it does, so that the running requests drain and it cannot starve. Everything else (pages, tokens, batch
    size) is strictly in order.

    Without chunked prefill a prompt is scheduled whole or not at all. Only a repeated prefill that has grown
    beyond `max_num_tokens` by its output is cut all the same: it could never run otherwise.
    """

    def __init__(
        self,
        *,
        max_batch_size: int,
        max_num_tokens: int,
        max_seq_len: int,
        vocab_size: int,
        enable_chunked_prefill: bool,
        kv_cache_manager: KvCacheManager,
        adapter_capacity: AdapterCapacity,
        max_adapter_wait_iters: int,
    ) -> None:
        assert max_batch_size >= 1 and max_num_tokens >= 1 and max_adapter_wait_iters >= 0
        self._max_batch_size = max_batch_size
        self._max_num_tokens = max_num_tokens
        self._enable_chunked_prefill = enable_chunked_prefill
        self._kv_cache = kv_cache_manager
        self._adapter_capacity = adapter_capacity
        self._max_adapter_wait_iters = max_adapter_wait_iters
        self._limits = RequestLimits(
            vocab_size=vocab_size,
            max_seq_len=max_seq_len,
            max_whole_prompt=None if enable_chunked_prefill else max_num_tokens,
            max_cached_tokens=kv_cache_manager.total_pages * kv_cache_manager.page_size,
        )
        # Both in arrival order.
        self._waiting: list[LlmRequest] = []
        self._running: list[LlmRequest] = []
        self._round = 0
        self.num_preemptions = 0

    def may_run_ahead(self) -> bool:
        """Whether the next step can be scheduled while the tokens of the last one are in flight.

        Not if it might preempt (a prefill over an unknown token), nor if a penalty or a grammar needs the token.
        """
        return self._kv_cache.num_available_pages >= len(self._running) and not any(
            request.needs_newest_token for request in self._running
        )

    @property
    def has_unfinished(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> tuple[LlmRequest, ...]:
        """Requests that hold nothing yet (or nothing any more), in arrival order."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[LlmRequest, ...]:
        """Requests in prefill or decode, in arrival order."""
        return tuple(self._running)

    @property
    def active_adapters(self) -> dict[AdapterKey, AdapterHandle]:
        """The distinct adapters of all running requests; none of them may lose its slot."""
        adapters = (request.adapter for request in self._running)
        return {adapter.key: adapter for adapter in adapters if adapter is not None}

    def refusal(self, request: LlmRequest) -> str | None:
        """Why `request` could never run here, as a text for its user; None if it can."""
        if request.adapter is not None and not self._adapter_capacity.can_admit((), request.adapter):
            return (
                f"the adapter needs {request.adapter.num_pages} pages of rank rows, more than there are for "
                f"all adapters together: raise max_loras or max_lora_rank"
            )
        return self._limits.refusal(request)

    def add(self, request: LlmRequest) -> None:
        """Queue a request whose adapter is loaded.

        Raises:
            ValueError: it could never run (the text of `refusal`).
        """
        refusal = self.refusal(request)
        if refusal is not None:
            raise ValueError(refusal)
        insort(self._waiting, request, key=_arrival)

    def schedule(self) -> ScheduledRequests:
        """The next step's batch; empty only if no request has a token to compute. `complete_step` comes next."""
        self._round += 1
        preemptions_before = self.num_preemptions
        scheduled = ScheduledRequests()
        budget = self._schedule_generation(scheduled, self._max_num_tokens)
        budget = self._schedule_context(scheduled, budget)
        # After a preemption pages are short by definition; a newcomer would only be the next victim.
        if self.num_preemptions == preemptions_before:
            self._admit(scheduled, budget)
        assert scheduled or self._only_last_tokens(), "the scheduler accepted a request that it cannot run"
        return scheduled

    def complete_step(self, scheduled: ScheduledRequests) -> None:
        """Record that the step's keys and values are written, and count the tokens that it samples.

        Call it once the tokens of the step before are known, and before those of this step are. Requests that ended
        meanwhile are left out.
        """
        for chunk in scheduled.context:
            if not chunk.request.is_finished:
                chunk.request.num_computed_tokens = chunk.stop
                self._kv_cache.commit(chunk.request)
                if chunk.is_last:
                    chunk.request.state = RequestState.GENERATION
                    chunk.request.reserve_token()
        for request in scheduled.generation:
            if not request.is_finished:
                request.num_computed_tokens += 1
                self._kv_cache.commit(request)
                request.reserve_token()

    def finish(self, request: LlmRequest) -> None:
        """Release everything of a request whose `resolve_token` gave a finish reason. May be repeated."""
        self._release(request, discard=False)

    def abort(self, request: LlmRequest) -> None:
        """End a request in any state, with finish reason "abort" unless it had ended already."""
        if not request.is_finished:
            request.finish_reason = "abort"
            self._release(request, discard=False)

    def fail(self, request: LlmRequest, error: str) -> None:
        """End a request with an error; what it wrote to the cache is not reused."""
        if not request.is_finished:
            request.finish_reason, request.error = "error", error
            self._release(request, discard=True)

    def _schedule_generation(self, scheduled: ScheduledRequests, budget: int) -> int:
        # Victims are taken from the end of the same list, hence never from what is scheduled already.
        index = 0
        while index < len(self._running) and budget > 0:
            request = self._running[index]
            if request.state is RequestState.GENERATION and self._grow(request):
                scheduled.generation.append(request)
                budget -= 1
            index += 1
        return budget

    def _grow(self, request: LlmRequest) -> bool:
        """Get the newest token's page, at the cost of later arrivals; False if the request is the latest."""
        while not self._kv_cache.allocate(request, request.num_tokens):
            victim = self._running.pop()
            self._kv_cache.free(victim)
            victim.state = RequestState.WAITING
            victim.num_preemptions += 1
            victim.overtaken_since = None
            self.num_preemptions += 1
            insort(self._waiting, victim, key=_arrival)
            if victim is request:
                return False
        return True

    def _schedule_context(self, scheduled: ScheduledRequests, budget: int) -> int:
        for request in self._running:
            if request.state is RequestState.CONTEXT:
                length = self._chunk_length(request.num_uncomputed_tokens, budget)
                if length == 0:
                    break
                scheduled.context.append(ContextChunk(request, request.num_computed_tokens, length))
                budget -= length
        return budget

    def _admit(self, scheduled: ScheduledRequests, budget: int) -> None:
        adapters = AdapterAdmission(
            self._adapter_capacity,
            self.active_adapters,
            round_index=self._round,
            max_wait=self._max_adapter_wait_iters,
        )
        for request in self.waiting:
            if len(self._running) >= self._max_batch_size:
                break
            if not adapters.fits(request):
                if adapters.pass_over(request):
                    continue
                break
            uncached = request.num_tokens - self._kv_cache.match_prefix(request)
            length = self._chunk_length(uncached, budget)
            # The headroom lets each running request go on for a page, rather than preempt the newcomer at
            # once.
            headroom = len(self._running)
            if length == 0 or not self._kv_cache.allocate(request, request.num_tokens, headroom=headroom):
                break
            adapters.start(request)
            self._start(request)
            scheduled.context.append(ContextChunk(request, request.num_computed_tokens, length))
            budget -= length

    def _start(self, request: LlmRequest) -> None:
        self._waiting.remove(request)
        insort(self._running, request, key=_arrival)
        request.state = RequestState.CONTEXT
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed_tokens

    def _chunk_length(self, num_tokens: int, budget: int) -> int:
        """Tokens of a prefill with `num_tokens` to go that this step can take."""
        if num_tokens <= budget:
            return num_tokens
        cut = self._enable_chunked_prefill or num_tokens > self._max_num_tokens
        return budget if cut else 0

    def _only_last_tokens(self) -> bool:
        return all(request.state is RequestState.LAST_TOKEN for request in self._running) and (
            bool(self._running) or not self._waiting
        )

    def _release(self, request: LlmRequest, *, discard: bool) -> None:
        for queue in (self._waiting, self._running):
            if request in queue:
                queue.remove(request)
        self._kv_cache.free(request, discard=discard)
        request.state = RequestState.FINISHED


def _arrival(request: LlmRequest) -> tuple[int, int]:
    return request.arrival, request.sequence_index
