"""/v1/adapters, and the admin routes that load and unload adapters."""

from dataclasses import asdict

from fastapi import APIRouter, Response

from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.serve.adapter_bodies import LoadLoraAdapterBody, UnloadLoraAdapterBody
from tensorrt_lora.serve.api_error import AsciiJSONResponse
from tensorrt_lora.serve.server_state import ServerState


def adapter_routes(state: ServerState) -> APIRouter:
    """The routes of one server. Who may call them is decided before, by `AccessControl`."""
    router = APIRouter(prefix="/v1", tags=["adapters"])

    @router.get("/adapters")
    async def list_adapters() -> Response:
        """Every adapter and version that the engine knows: state, tier, rank, bytes, users, last use."""
        statuses = await state.catalog.statuses()
        return AsciiJSONResponse({"object": "list", "data": [_card(status) for status in statuses]})

    @router.post("/load_lora_adapter")
    async def load_lora_adapter(body: LoadLoraAdapterBody) -> Response:
        """Load an adapter of the root directory, or replace one; answers when it can be used."""
        state.gate.check_phase()
        status = await state.catalog.load(
            body.lora_name, body.lora_path, in_place=body.load_inplace, pinned=body.pinned
        )
        return AsciiJSONResponse(_card(status))

    @router.post("/unload_lora_adapter")
    async def unload_lora_adapter(body: UnloadLoraAdapterBody) -> Response:
        """Refuse new requests for an adapter, and free its memory when the last one that runs has ended."""
        state.gate.check_phase()
        await state.catalog.unload(body.lora_name)
        return AsciiJSONResponse({"id": body.lora_name, "object": "adapter", "deleted": True})

    return router


def _card(status: AdapterStatus) -> dict[str, object]:
    return {"id": status.name, "object": "adapter", **asdict(status)}
