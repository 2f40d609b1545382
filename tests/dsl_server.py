"""The HTTP frontend on an engine's own client, listening on a free port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from ramet.runtime.frontend.http import create_app

import ramet as rt
from ramet.programs import add_program_routes


@contextmanager
def served(engine: rt.Engine, **options: object) -> Iterator[str]:
    """URL of a server that ends with the block."""
    backend = engine.backend
    folder = engine._session.folder
    app = create_app(backend.client, folder, tokenizer=backend.tokenizer, **options)  # type: ignore[arg-type]
    add_program_routes(app)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=1))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]

        async def start() -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(server._serve([listener]))

        task = engine._loop.wait(start())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True

            async def end() -> None:
                await task

            engine._loop.wait(end())
