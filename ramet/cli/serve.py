"""Start the server: OpenAI API, programs, metrics. Ctrl-C or SIGTERM ends it and all its processes."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from typing import TYPE_CHECKING

from ramet.cli.options import add_model_option, add_runtime_options, positive, session_options
from ramet.runtime.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from ramet.session import SessionOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000; 0: any free one)")
    parser.add_argument("--api-key", default=None, help="clients must send it as a bearer token")
    parser.add_argument(
        "--served-name", action="append", default=None, metavar="NAME", help="a further model name to answer to"
    )
    parser.add_argument(
        "--log-level",
        default="warning",
        choices=("critical", "error", "warning", "info", "debug"),
        help="of the HTTP server (warning; info: a line per request)",
    )
    parser.add_argument("--drain-seconds", type=positive, default=3, help="time for open requests on shutdown (3)")
    add_runtime_options(parser)


def run(arguments: argparse.Namespace) -> int:
    with _listen(arguments.host, arguments.port) as listener:
        return asyncio.run(_serve(arguments, session_options(arguments), listener))


def _listen(host: str, port: int) -> socket.socket:
    """Take the port first (a busy one is known at once, not after loading), but answer nobody before all is ready."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise InvalidRequest(
            f"port {port} of {host} cannot be used ({error}): stop what listens there, or give another --port",
            param="port",
        ) from error
    return listener


async def _serve(arguments: argparse.Namespace, options: SessionOptions, listener: socket.socket) -> int:
    from ramet.session import Session

    host, port = listener.getsockname()[:2]
    print(f"loading {options.model} ...", file=sys.stderr, flush=True)
    # The HTTP libraries take as long to import as the model to load: both at once.
    importing = asyncio.create_task(asyncio.to_thread(_import_http))
    async with Session(options) as session:
        await importing
        import uvicorn

        from ramet.programs import add_program_routes
        from ramet.runtime.frontend.http import create_app

        app = create_app(
            session.client,
            session.folder,
            tokenizer=session.tokenizer,
            names=tuple(arguments.served_name) if arguments.served_name else None,
            api_keys=(arguments.api_key,) if arguments.api_key else (),
        )
        add_program_routes(app)
        config = uvicorn.Config(
            app, log_level=arguments.log_level, timeout_graceful_shutdown=arguments.drain_seconds, lifespan="off"
        )
        listener.listen(2048)
        place = f"[{host}]" if ":" in host else host
        print(f"ramet serves {session.folder.meta.name} on http://{place}:{port}/v1", file=sys.stderr, flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])
    return 0


def _import_http() -> None:
    import uvicorn  # noqa: F401

    import ramet.programs
    import ramet.runtime.frontend.http  # noqa: F401
