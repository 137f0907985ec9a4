"""``minivllm serve``: the OpenAI-compatible server around an ``AsyncLLM``.

(vLLM: vllm/entrypoints/openai/api_server.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from minivllm import envs
from minivllm.engine.async_llm import AsyncLLM
from minivllm.entrypoints.openai import dev_routes, lora_routes, routes
from minivllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from minivllm.entrypoints.openai.cli_args import engine_args, parse_args
from minivllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from minivllm.entrypoints.openai.errors import add_handlers
from minivllm.entrypoints.openai.glass.routes import add_glass
from minivllm.entrypoints.openai.glass.show import GlassShow
from minivllm.entrypoints.openai.middleware import (
    AdmissionMiddleware,
    AuthenticationMiddleware,
    BodyLimitMiddleware,
    KeepSend,
    LoadMiddleware,
    RequestIdMiddleware,
)
from minivllm.entrypoints.openai.pooling.routes import add_pooling
from minivllm.entrypoints.openai.served_model import ServedModel
from minivllm.entrypoints.openai.tokenize.serving import OpenAIServingTokenization
from minivllm.executor.exceptions import EngineDeadError
from minivllm.logger import init_logger
from minivllm.utils.gc_utils import freeze_gc_heap
from minivllm.version import __version__

logger = init_logger(__name__)

_SECONDS_FOR_THE_LAST = 3  # for clients to read the ends of their answers, after the timeout
_SECONDS_AFTER_DEATH = 2.0  # in which a server with a dead engine still answers with the error


def build_app(engine: AsyncLLM, args: Namespace) -> FastAPI:
    """Make the FastAPI application around an engine.

    Args:
        engine: runs all requests.
        args: see ``cli_args.parse_args``.

    Raises:
        ValueError: for a chat template that cannot be read.
    """
    hidden: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    app = FastAPI(
        title="minivllm",
        version=__version__,
        **(hidden if args.disable_fastapi_docs else {}),
    )
    app.root_path = args.root_path  # routes match with it and without
    served = ServedModel(engine, args)
    state = app.state
    state.served = served
    state.server_load = 0
    state.models = served.models
    state.tokenization = OpenAIServingTokenization(served)
    app.include_router(routes.router)
    if engine.model_config.runner_type == "pooling":
        add_pooling(app, served)
    else:
        state.completion = OpenAIServingCompletion(served)
        state.chat = OpenAIServingChat(served)
        app.include_router(routes.generation)
    routes.add_metrics(app, of_the_engine=not args.disable_log_stats)
    if args.enable_tokenizer_info_endpoint:
        routes.add_tokenizer_info(app)
    state.glass = None
    if args.glass:
        name = served.models.model_name()
        add_glass(app, engine, name, served.chat_template, small=args.small_pool)
    if envs.server_dev_mode():
        logger.warning("dev mode: every client of this server can pause it and abort requests")
        app.include_router(dev_routes.router)
    if envs.allow_runtime_lora_updating():
        logger.warning("every client of this server can load adapters: only for development")
        app.include_router(lora_routes.router)
    add_handlers(app)
    app.add_middleware(BodyLimitMiddleware)
    if args.max_num_queued_reqs is not None:
        app.add_middleware(AdmissionMiddleware, served=served)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=args.allowed_origins,
        allow_methods=args.allowed_methods,
        allow_headers=args.allowed_headers,
        allow_credentials=args.allow_credentials,
    )
    if keys := args.api_key or envs.api_keys():
        app.add_middleware(AuthenticationMiddleware, keys=keys, root_path=args.root_path)
    if args.enable_server_load_tracking:
        app.add_middleware(LoadMiddleware, state=state)
    if args.enable_request_id_headers:
        app.add_middleware(RequestIdMiddleware)
    return app


class Server(uvicorn.Server):
    """A uvicorn server with vLLM's shutdown: running requests get ``--shutdown-timeout`` seconds.

    Args:
        config: uvicorn's.
        served: the model; its engine stops last.
        glass: the show at /glass, if it is on.
    """

    def __init__(self, config: uvicorn.Config, served: ServedModel, glass: GlassShow | None = None):
        super().__init__(config)
        self.engine = served.engine
        self.models = served.models
        self.lora_modules = served.args.lora_modules
        self.glass = glass
        self.shutdown_timeout = served.args.shutdown_timeout
        self.status = 0  # exit status of the process

    @contextlib.contextmanager
    def capture_signals(self):
        """Context manager: a signal ends the server with status 0; uvicorn would raise it again."""
        loop = asyncio.get_running_loop()
        signals = [signal.SIGINT, signal.SIGTERM]
        try:
            for one in signals:
                loop.add_signal_handler(one, self.handle_exit, one, None)
        except (NotImplementedError, RuntimeError, ValueError):
            signals = []  # another thread than the main one: it gets no signals
        try:
            yield
        finally:
            for one in signals:
                loop.remove_signal_handler(one)

    async def startup(self, sockets=None) -> None:
        """Load the adapters of the command line, then answer. An adapter's error ends it."""
        handler = self.engine.output_handler
        handler.on_death = self._engine_died
        try:
            handler.bind_to_loop()  # from now on the death of the engine is reported
        except EngineDeadError:
            self._engine_died()
        try:
            await self.models.init_static_loras(self.lora_modules)
        except BaseException:
            self.engine.shutdown()
            raise
        await super().startup(sockets)

    async def shutdown(self, sockets=None) -> None:
        """Close the listening socket, let open requests end, stop the engine."""
        if self.glass is not None:
            self.glass.close()  # its streams end only so
        ending = asyncio.ensure_future(self._end_requests())
        await super().shutdown(sockets)
        ending.cancel()
        self.engine.shutdown()

    async def _end_requests(self) -> None:
        """Abort running requests after the timeout, and later ones; until cancelled."""
        await asyncio.sleep(self.shutdown_timeout)
        while True:
            await self.engine.abort(self.engine.request_ids)
            await asyncio.sleep(0.1)

    def _engine_died(self) -> None:
        if not self.should_exit:
            self.status = 1
            loop = asyncio.get_running_loop()
            loop.call_later(_SECONDS_AFTER_DEATH, setattr, self, "should_exit", True)


def make_server(app: FastAPI, args: Namespace) -> Server:
    """Make the server of an application."""
    config = uvicorn.Config(
        KeepSend(app),
        log_level=args.uvicorn_log_level,
        access_log=not args.disable_uvicorn_access_log,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(args.shutdown_timeout) + _SECONDS_FOR_THE_LAST,
    )
    return Server(config, app.state.served, app.state.glass)


def open_socket(args: Namespace) -> socket.socket:
    """Open the server's socket, before the engine is made: a port in use is an early error."""
    if args.uds:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(args.uds)
        return listening
    host = args.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, args.port))
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen on {host}:{args.port}: {error.strerror}") from error
    return listening


def routes_of(router: Any) -> Iterator[Any]:
    """All routes of an app or a router, those of the routers that it includes in their place.

    New versions of FastAPI keep included routers whole; older ones copied their routes.
    """
    for route in router.routes:
        included = getattr(route, "original_router", None)
        yield from [route] if included is None else routes_of(included)


def run_server(args: Namespace) -> int:
    """Serve until a signal comes or the engine dies. Returns the process's exit status.

    Raises:
        ValueError, OSError: if the model cannot be loaded, or the socket opened.
    """
    listening = open_socket(args)
    with contextlib.closing(listening):
        engine = AsyncLLM.from_engine_args(engine_args(args))
        app = build_app(engine, args)
        server = make_server(app, args)
        where = args.uds
        if not args.uds:
            host, port = listening.getsockname()[:2]
            where = f"http://{host}:{port}"
            if not (args.api_key or envs.api_keys() or host in ("127.0.0.1", "::1")):
                logger.warning(
                    "no API key: every client that can reach %s may use this server (--api-key)",
                    where,
                )
        for route in routes_of(app):
            methods = ", ".join(sorted(getattr(route, "methods", None) or ()))
            logger.info("Route: %s, Methods: %s", route.path, methods)
        logger.info("Starting minivllm server on %s", where)
        if args.glass and not args.uds:
            logger.info("What the engine does: %s/glass", where)
        freeze_gc_heap()
        server.run(sockets=[listening])  # in uvloop's event loop, where there is one
        if args.uds:
            Path(args.uds).unlink(missing_ok=True)
    return server.status


def main(words: list[str], prog: str = "minivllm serve") -> int:
    """The command ``minivllm serve``. Returns the exit status: 2 for bad input."""
    args = parse_args(words, prog)
    logging.getLogger("minivllm").setLevel(envs.logging_level())
    try:
        return run_server(args)
    except (ValueError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "python -m minivllm.entrypoints.openai.api_server"))
