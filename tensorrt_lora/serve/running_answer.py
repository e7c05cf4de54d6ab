"""The engine's requests behind one HTTP request, as one thing to stream, to wait for and to end.

Owns their merging, the time-out, and that nothing runs on when the HTTP request ends, however it ends. Made by
`AnswerService`, read by the routes. Knows no JSON.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from time import perf_counter

from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.llmapi.request_future import RequestFuture
from tensorrt_lora.llmapi.request_output import RequestError, RequestOutput
from tensorrt_lora.serve.admission_gate import AdmissionGate, Ticket
from tensorrt_lora.serve.api_error import ENGINE_DEAD, ApiError
from tensorrt_lora.serve.request_record import RequestObserver, RequestRecord


class RunningAnswer:
    """One request from the moment it is let in. `close` it in every case; a second `close` does nothing."""

    def __init__(
        self, gate: AdmissionGate, ticket: Ticket, record: RequestRecord, observer: RequestObserver, timeout_s: float
    ) -> None:
        self._gate = gate
        self._ticket = ticket
        self._record = record
        self._observer = observer
        self._futures: Sequence[RequestFuture] = ()
        self._outputs: dict[int, RequestOutput] = {}
        self._timed_out = False
        self._closed = False
        ticket.abort = self._abort
        loop = asyncio.get_running_loop()
        self.deadline = loop.time() + timeout_s
        self._timer = loop.call_at(self.deadline, self._time_out)

    @property
    def record(self) -> RequestRecord:
        return self._record

    @property
    def outputs(self) -> list[RequestOutput]:
        """The last that was seen of each prompt's answer, in order."""
        return [self._outputs[index] for index in sorted(self._outputs)]

    def start(self, futures: Sequence[RequestFuture], *, prompt_tokens: int) -> None:
        """Take the engine's requests, one for each prompt. Raises ApiError (504) when time is up already."""
        self._futures = futures
        self._record.prompt_tokens = prompt_tokens
        self._record.submitted_at = perf_counter()
        if self._timed_out:
            raise timed_out()

    async def results(self) -> list[RequestOutput]:
        """Wait for all. Raises ApiError as `snapshots` does."""
        async for _ in self.snapshots():
            pass
        return self.outputs

    async def snapshots(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """(index of the prompt, its answer so far) whenever there is news, and at the end.

        Raises ApiError: 400 for what the engine refuses, 504 when time is up, 503 when engine or server end.
        """
        try:
            async for index, output in self._merged():
                self._check(output)
                self._note(index, output)
                yield index, output
        except RequestError as error:
            if error.adapter_error_kind is not None:
                raise ApiError.of_adapter(str(error), error.adapter_error_kind) from error
            raise ApiError(400, str(error), code="request_refused") from error
        except EngineDeadError as error:
            raise ApiError(503, str(error), code=ENGINE_DEAD) from error
        self._record.outcome = "ok"

    def close(self) -> None:
        """End what runs, give back the share of the limit, and tell the observer."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._abort()
        self._gate.leave(self._ticket)
        self._record.finished_at = perf_counter()
        self._observer.on_finish(self._record)

    async def _merged(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        if len(self._futures) == 1:
            async for output in self._futures[0]:
                yield 0, output
            return
        # One place for each prompt: a slow reader gets fewer and larger snapshots here too.
        news: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(len(self._futures))
        pumps = [asyncio.create_task(_pump(index, future, news)) for index, future in enumerate(self._futures)]
        try:
            running = len(pumps)
            while running:
                index, item = await news.get()
                if item is None:
                    running -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield index, item
        finally:
            for pump in pumps:
                pump.cancel()

    def _check(self, output: RequestOutput) -> None:
        if not any(one.finish_reason == "abort" for one in output.outputs):
            return
        if self._timed_out:
            raise timed_out()
        raise ApiError(503, "the request was ended: the server is shutting down", code="shutting_down")

    def _note(self, index: int, output: RequestOutput) -> None:
        num_new = sum(len(one.token_ids) - one.seen_tokens for one in output.outputs)
        self._outputs[index] = output
        record = self._record
        if output.finished:
            record.cached_tokens += output.usage.cached_tokens
        if num_new:
            now = perf_counter()
            before, record.last_token_at = record.last_token_at, now
            if record.first_token_at is None:
                record.first_token_at = now
            record.completion_tokens += num_new
            self._observer.on_tokens(record, num_new, None if before is None else now - before)

    def _time_out(self) -> None:
        self._timed_out = True
        self._abort()

    def _abort(self) -> None:
        for future in self._futures:
            future.abort()


def timed_out() -> ApiError:
    """The answer when time is up."""
    return ApiError(504, "the request took longer than this server allows", code="timeout")


async def _pump(
    index: int, future: RequestFuture, news: "asyncio.Queue[tuple[int, RequestOutput | Exception | None]]"
) -> None:
    try:
        async for output in future:
            await news.put((index, output))
        await news.put((index, None))
    except (RequestError, EngineDeadError) as error:
        await news.put((index, error))
