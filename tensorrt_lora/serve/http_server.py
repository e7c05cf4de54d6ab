"""Runs the application until it is told to stop, and then lets it finish.

Owns the process's signals while the server runs: the first SIGTERM or SIGINT drains, a second one ends at once.
"""

import signal
from types import FrameType

import uvicorn
from fastapi import FastAPI

from tensorrt_lora.serve.serve_config import ServeConfig
from tensorrt_lora.serve.server_state import ServerState
from tensorrt_lora.utils.logger import logger

_ABORT_S = 5.0  # for what was aborted to say so


class DrainingServer(uvicorn.Server):
    """Uvicorn that refuses new requests with 503 and finishes the running ones before it closes its socket."""

    def __init__(self, config: uvicorn.Config, state: ServerState, *, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._state = state
        self._ticks_left = round(drain_timeout_s / _TICK_S)
        self._is_draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal, between two bytecodes of the event loop's thread."""
        if self._is_draining:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT
        self._is_draining = True
        self._state.gate.close()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        state = self._state
        if state.failure is not None:
            self.should_exit = True
        elif self._is_draining:
            self._ticks_left -= 1
            if self._ticks_left == 0:
                logger.warning("requests still run: aborting them")
                state.gate.abort_all()
            is_idle = state.gate.is_idle and not state.catalog.is_changing
            if is_idle or self._ticks_left < -_ABORT_S / _TICK_S:
                self.should_exit = True
        return await super().on_tick(counter)


_TICK_S = 0.1  # uvicorn's


def run_server(app: FastAPI, config: ServeConfig) -> None:
    """Serve until a signal, then drain. Raises ValueError when the server cannot start or go on."""
    state: ServerState = app.state.server
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        log_level=config.log_level,
        access_log=config.access_log,
        timeout_keep_alive=config.keep_alive_timeout_s,
        # Nothing runs any more when uvicorn shuts down; what is left are idle connections.
        timeout_graceful_shutdown=round(_ABORT_S),
        server_header=False,
    )
    server = DrainingServer(settings, state, drain_timeout_s=config.drain_timeout_s)
    server.run()
    if state.failure is not None:
        raise ValueError(state.failure)
