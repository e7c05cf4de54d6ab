"""/v1/models, /v1/completions and /v1/chat/completions."""

from fastapi import APIRouter, Request, Response

from tensorrt_lora.serve.adapter_root import shown
from tensorrt_lora.serve.api_error import ApiError, AsciiJSONResponse
from tensorrt_lora.serve.chat_completion_body import ChatCompletionBody
from tensorrt_lora.serve.chat_writer import ChatWriter
from tensorrt_lora.serve.completion_body import CompletionBody
from tensorrt_lora.serve.completion_writer import CompletionWriter
from tensorrt_lora.serve.request_record import RequestRecord
from tensorrt_lora.serve.server_state import ServerState

_OWNER = "tensorrt-lora"


def openai_routes(state: ServerState, *, created: int) -> APIRouter:
    """The routes of one server; `created` is the Unix time at which its base model was loaded."""
    router = APIRouter(prefix="/v1", tags=["openai"])

    def models() -> list[dict[str, object]]:
        base = state.config.base_names[0]
        cards: dict[str, dict[str, object]] = {
            base: {"root": state.config.engine.model, "parent": None, "created": created}
        }
        for entry in state.catalog.entries:
            request = entry.request
            cards[request.lora_name] = {"root": request.lora_path, "parent": base, "created": entry.created}
        return [{"id": name, "object": "model", "owned_by": _OWNER, **card} for name, card in cards.items()]

    @router.get("/models")
    async def list_models() -> Response:
        """The base model, then the adapters: `root` is where each comes from, `parent` the model it adapts."""
        return AsciiJSONResponse({"object": "list", "data": models()})

    @router.get("/models/{model:path}")
    async def retrieve_model(model: str) -> Response:
        """One of them."""
        if model in state.config.base_names:
            return AsciiJSONResponse(models()[0])
        for card in models():
            if card["id"] == model:
                return AsciiJSONResponse(card)
        raise ApiError(404, f"there is no model {shown(model)} here", code="model_not_found", param="model")

    @router.post("/completions")
    async def create_completion(body: CompletionBody, request: Request) -> Response:
        """Continue prompts."""
        writer = CompletionWriter(
            state.tokens,
            top=body.num_logprobs,
            model=body.model,
            num_choices=body.num_choices,
            includes_usage=body.includes_usage,
        )
        return await state.answers.answer(
            request,
            body,
            _record(request, "completions", body.streams),
            num_prompts=len(body.prompts),
            read=lambda: state.prompts.read_completion(body),
            writer=writer,
        )

    @router.post("/chat/completions")
    async def create_chat_completion(body: ChatCompletionBody, request: Request) -> Response:
        """Continue a conversation."""
        writer = ChatWriter(
            state.tokens,
            top=body.num_logprobs,
            model=body.model,
            num_choices=body.num_choices,
            includes_usage=body.includes_usage,
        )
        return await state.answers.answer(
            request,
            body,
            _record(request, "chat_completions", body.streams),
            num_prompts=1,
            read=lambda: state.prompts.read_chat(body),
            writer=writer,
        )

    return router


def _record(request: Request, endpoint: str, streams: bool) -> RequestRecord:
    """The request's record, for whoever counts answers too."""
    record = request.state.record = RequestRecord(endpoint, streams)
    return record
