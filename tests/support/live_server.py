"""A server on a free port in a thread of the test's process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


@contextmanager
def live_server(app: FastAPI) -> Iterator[str]:
    """Serve `app`; gives its URL once it listens and its adapters are warm."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=5))
    started = threading.Event()
    tick = server.on_tick

    async def on_tick(counter: int) -> bool:
        state = app.state.server
        if state.gate.phase != "starting" or state.failure is not None:
            started.set()
        return await tick(counter)

    server.on_tick = on_tick  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        assert started.wait(60), "the server did not start"
        assert app.state.server.failure is None, app.state.server.failure
        [listener] = server.servers
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
