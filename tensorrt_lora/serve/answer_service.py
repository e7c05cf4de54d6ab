"""From a request's body to a running answer, and from there to a response.

Owns the order of things: a place, the adapter, the prompt, then the engine. Called by the routes. Knows HTTP only as
far as a client can go away.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.llmapi.prompt import PromptDict
from tensorrt_lora.llmapi.request_future import RequestFuture
from tensorrt_lora.llmapi.request_output import RequestOutput
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams
from tensorrt_lora.serve.adapter_catalog import AdapterCatalog
from tensorrt_lora.serve.admission_gate import AdmissionGate
from tensorrt_lora.serve.answer_writer import AnswerWriter, JsonObject
from tensorrt_lora.serve.api_error import ENGINE_DEAD, ApiError, AsciiJSONResponse
from tensorrt_lora.serve.client_connection import while_connected
from tensorrt_lora.serve.event_stream import DONE, EventStream, frame
from tensorrt_lora.serve.prompt_reader import ReadPrompt
from tensorrt_lora.serve.request_record import RequestObserver, RequestRecord
from tensorrt_lora.serve.running_answer import RunningAnswer, timed_out
from tensorrt_lora.serve.sampling_fields import SamplingFields

_OUTCOMES = {503: "error", 504: "timeout"}
_GRACE_S = 1.0  # the engine's requests are ended first, which gives the better answer


class GenerationEngine(Protocol):
    """What the service needs of `LLM`."""

    def generate_async(
        self,
        prompt: PromptDict,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        *,
        streaming: bool = False,
    ) -> RequestFuture: ...


class AnswerService:
    """Answers one request at a time, any number at once."""

    def __init__(
        self,
        engine: GenerationEngine,
        catalog: AdapterCatalog,
        gate: AdmissionGate,
        observer: RequestObserver,
        *,
        timeout_s: float,
    ) -> None:
        self._engine = engine
        self._catalog = catalog
        self._gate = gate
        self._observer = observer
        self._timeout_s = timeout_s

    async def answer(
        self,
        request: Request,
        body: SamplingFields,
        record: RequestRecord,
        *,
        num_prompts: int,
        read: Callable[[], Awaitable[list[ReadPrompt]]],
        writer: AnswerWriter,
    ) -> Response:
        """The response to a request, as JSON or as a stream.

        Raises ApiError for what is refused, before anything is sent, and ClientGoneError.
        """
        self._observer.on_start(record)
        response: Response | None = None
        running: RunningAnswer | None = None
        try:
            body.check_stream()
            ticket = self._gate.enter(num_prompts * body.num_choices)
            running = RunningAnswer(self._gate, ticket, record, self._observer, self._timeout_s)
            work = self._begin(running, body, read, writer)
            response = await while_connected(request.receive, work, timeout_s=self._timeout_s + _GRACE_S)
        except ApiError as error:
            record.outcome = _OUTCOMES.get(error.status, "refused")
            raise
        except TimeoutError as error:
            record.outcome = "timeout"
            raise timed_out() from error
        finally:
            if running is None:
                self._observer.on_finish(record)
            elif not isinstance(response, EventStream):
                running.close()
        return response

    async def _begin(
        self,
        running: RunningAnswer,
        body: SamplingFields,
        read: Callable[[], Awaitable[list[ReadPrompt]]],
        writer: AnswerWriter,
    ) -> Response:
        name = await self._catalog.choose(body.model, body.lora_request)
        running.record.adapter = name
        prompts = await read()
        # Nothing waits between these two: what the name stands for now is what the engine is given.
        adapter = self._catalog.current(name)
        running.start(
            [self._submit(one, adapter, streaming=body.streams) for one in prompts],
            prompt_tokens=sum(one.num_tokens for one in prompts),
        )
        if not body.streams:
            return AsciiJSONResponse(writer.whole(await running.results()))
        # The first news are waited for: what the engine refuses is still an answer with a status.
        snapshots = running.snapshots()
        first = await anext(snapshots)
        frames = _frames(first, snapshots, running, writer, len(prompts))
        return EventStream(frames, close=running.close, deadline=running.deadline)

    def _submit(self, one: ReadPrompt, adapter: LoRARequest | None, *, streaming: bool) -> RequestFuture:
        try:
            return self._engine.generate_async(one.prompt, one.params, adapter, streaming=streaming)
        except ValueError as error:
            raise ApiError(400, str(error), code="request_refused") from error
        except EngineDeadError as error:
            raise ApiError(503, str(error), code=ENGINE_DEAD) from error


async def _frames(
    first: tuple[int, RequestOutput],
    rest: AsyncIterator[tuple[int, RequestOutput]],
    running: RunningAnswer,
    writer: AnswerWriter,
    num_prompts: int,
) -> AsyncGenerator[bytes, None]:
    """The stream's events. What goes wrong on the way is an event too: the status has been sent."""
    try:
        yield _joined([*writer.opening(num_prompts), *writer.chunks(*first)])
        async for index, output in rest:
            if data := _joined(writer.chunks(index, output)):
                yield data
        # Before the client sees the end: its next request finds the place free.
        running.close()
        yield _joined(writer.closing(running.outputs)) + DONE
    except ApiError as error:
        running.record.outcome = _OUTCOMES.get(error.status, "error")
        yield frame(error.body()) + DONE


def _joined(chunks: Iterable[JsonObject]) -> bytes:
    return b"".join(frame(chunk) for chunk in chunks)
