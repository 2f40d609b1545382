"""Start the server: OpenAI API, programs, metrics. Ctrl-C or SIGTERM ends it and all its processes."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ramet import __version__
from ramet.cli.options import add_model_option, add_runtime_options, count, port, positive, session_options
from ramet.runtime.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import uvicorn

    from ramet.runtime.store import ModelFolder
    from ramet.session import Session, SessionOptions

MAX_COMPILING = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8000, help="port to listen on (8000; 0: any free one)")
    parser.add_argument(
        "--api-key",
        action="append",
        default=None,
        metavar="KEY",
        help="clients must send it as a bearer token; again for more keys, each of which has a cache of its own",
    )
    parser.add_argument(
        "--api-key-file", type=Path, default=None, metavar="FILE", help="more of them, one a line, unseen by `ps`"
    )
    parser.add_argument(
        "--allowed-origin",
        action="append",
        default=None,
        metavar="ORIGIN",
        help="web pages of this origin may ask from a browser (CORS); * for all; may be given again",
    )
    parser.add_argument(
        "--chat-template", type=Path, default=None, metavar="FILE", help="a Jinja template instead of the model's own"
    )
    parser.add_argument(
        "--sampling-defaults",
        choices=("model", "openai"),
        default="model",
        help="temperature, top_p, ... of requests that give none: the model's own, where it has some, or OpenAI's",
    )
    parser.add_argument(
        "--reasoning-parser",
        choices=("none", "think"),
        default="none",
        help="think: what a model writes between <think> and </think> goes into reasoning_content (none)",
    )
    parser.add_argument(
        "--max-priority",
        type=count,
        default=10,
        metavar="N",
        help="requests may say a priority from -N to N (10); 0: all are equal",
    )
    parser.add_argument("--ssl-certfile", type=Path, default=None, metavar="FILE", help="serve HTTPS with it")
    parser.add_argument("--ssl-keyfile", type=Path, default=None, metavar="FILE", help="its private key")
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
    for option in ("api_key_file", "chat_template", "ssl_certfile", "ssl_keyfile"):
        path: Path | None = getattr(arguments, option)
        if path is not None and not path.is_file():
            raise InvalidRequest(f"--{option.replace('_', '-')}: there is no file {path}", param=option)
    with _listen(arguments.host, arguments.port) as listener:
        gc.disable()  # importing makes many objects that stay: to look at them again and again is a tenth of the start
        try:
            return asyncio.run(_serve(arguments, session_options(arguments), listener))
        finally:
            gc.enable()


def _listen(host: str, port: int) -> socket.socket:
    """Take the port first (a busy one is known at once, not after loading), but answer nobody before all is ready."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidRequest(
            f"port {port} of {host} cannot be used ({error}): stop what listens there, or give another --port",
            param="port",
        ) from error
    return listener


async def _serve(arguments: argparse.Namespace, options: SessionOptions, listener: socket.socket) -> int:
    from ramet.runtime.launch import LaunchFailed
    from ramet.session import Session

    host, port = listener.getsockname()[:2]
    print(f"loading {options.model} ...", file=sys.stderr, flush=True)
    # The HTTP libraries take as long to import as the model to load: both at once.
    importing = asyncio.create_task(asyncio.to_thread(_import_http))
    # Clients must not make each other wait for constraints without end; a program waits for its own.
    options = dataclasses.replace(options, max_compiling=MAX_COMPILING)
    async with Session(options) as session:
        await importing
        import uvicorn

        from ramet.programs import add_program_routes
        from ramet.runtime.frontend.http import create_app

        app = create_app(
            session.client,
            _with_template(session.folder, arguments.chat_template),
            tokenizer=session.tokenizer,
            names=tuple(arguments.served_name) if arguments.served_name else None,
            api_keys=_keys(arguments),
            own_sampling=arguments.sampling_defaults == "model",
            reasoning=arguments.reasoning_parser == "think",
            max_priority=arguments.max_priority,
            origins=tuple(arguments.allowed_origin or ()),
            version=__version__,
        )
        add_program_routes(app)
        config = uvicorn.Config(
            app,
            log_level=arguments.log_level,
            timeout_graceful_shutdown=arguments.drain_seconds,
            lifespan="off",
            ssl_certfile=arguments.ssl_certfile,
            ssl_keyfile=arguments.ssl_keyfile,
        )
        gc.freeze()
        gc.enable()
        listener.listen(2048)
        place = f"[{host}]" if ":" in host else host
        # The first text is then encoded without waiting for the tokeniser to be built; that holds no lock of Python's.
        asyncio.get_running_loop().run_in_executor(None, session.tokenizer.warm)
        scheme = "https" if arguments.ssl_certfile else "http"
        print(f"ramet serves {session.folder.meta.name} on {scheme}://{place}:{port}/v1", file=sys.stderr, flush=True)
        server = uvicorn.Server(config)
        watching = asyncio.create_task(_end_with_runtime(session, server))
        await server.serve(sockets=[listener])
        watching.cancel()
        if session.failure:  # what supervises this server is to start it anew, instead of one that refuses for ever
            raise LaunchFailed(session.failure)
    return 0


async def _end_with_runtime(session: Session, server: uvicorn.Server) -> None:
    await session.failed.wait()
    server.should_exit = True


def _keys(arguments: argparse.Namespace) -> tuple[str, ...]:
    keys: list[str] = list(arguments.api_key or ())
    if arguments.api_key_file is not None:
        keys += arguments.api_key_file.read_text(encoding="utf-8").split()
        if not keys:
            raise InvalidRequest(f"--api-key-file: {arguments.api_key_file} holds no key", param="api_key_file")
    return tuple(dict.fromkeys(key for key in keys if key))


def _with_template(folder: ModelFolder, file: Path | None) -> ModelFolder:
    if file is None:
        return folder
    meta = msgspec.structs.replace(folder.meta, chat_template=file.read_text(encoding="utf-8"))
    return dataclasses.replace(folder, meta=meta)


def _import_http() -> None:
    import uvicorn  # noqa: F401

    import ramet.programs
    import ramet.runtime.frontend.http  # noqa: F401
