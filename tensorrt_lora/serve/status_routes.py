"""/health, /ready, /version and /metrics: for those who run the server. No key is asked for."""

from fastapi import APIRouter, Response

from tensorrt_lora.serve.api_error import ApiError, AsciiJSONResponse
from tensorrt_lora.serve.server_metrics import ServerMetrics
from tensorrt_lora.serve.server_state import ServerState


def status_routes(state: ServerState, *, version: str, metrics: ServerMetrics | None) -> APIRouter:
    """The routes of one server; there is no /metrics where `metrics` is None."""
    router = APIRouter(tags=["status"])

    @router.get("/health")
    async def health() -> Response:
        """Whether the process and its engine live: 503 when only a restart helps."""
        if state.failure is not None:
            raise ApiError(503, state.failure, code="failed")
        return AsciiJSONResponse({"status": "ok"})

    @router.get("/ready")
    async def ready() -> Response:
        """Whether requests are served: 503 until all adapters of the configuration are warm, and from SIGTERM on."""
        state.gate.check_phase()
        if state.failure is not None:
            raise ApiError(503, state.failure, code="failed")
        return AsciiJSONResponse({"status": "ready"})

    @router.get("/version")
    async def show_version() -> Response:
        """The server's version."""
        return AsciiJSONResponse({"version": version})

    if metrics is not None:
        shown = metrics

        @router.get("/metrics")
        async def show_metrics() -> Response:
            """Counters and gauges in Prometheus' text format."""
            return await shown.render(state.engine, state.gate)

    return router
