"""One server process from start to end: the socket, the engine beside it, the application once both are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tokenwire.commands.engines import make_engine
from tokenwire.commands.progress import loading
from tokenwire.engine.base import Engine
from tokenwire.errors import TokenwireError
from tokenwire.server.app import create_app
from tokenwire.server.build import build_server
from tokenwire.server.process import Gate, HttpProcess, address_of, bind, uvicorn_config
from tokenwire.settings import Settings

logger = logging.getLogger("tokenwire")

STOPPED = 0
START_FAILED = 1

OnReady = Callable[[Settings, str, str, bool], None]
"""Told settings, address, model name, and whether there is an engine."""


def run(settings: Settings, *, with_engine: bool, on_ready: OnReady) -> int:
    """Run to the end; returns the exit code. Raises `SettingsError` before anything has started."""
    engine = make_engine(settings) if with_engine else None
    listener = bind(settings.network)
    gate = Gate()
    process = HttpProcess(
        uvicorn_config(gate, settings.network, settings.logs), shutdown_timeout_s=settings.network.shutdown_timeout
    )

    async def main() -> int:
        serving = asyncio.create_task(process.serve([listener]))
        opening = asyncio.create_task(_open(settings, engine, gate, process))
        try:
            await asyncio.wait({serving, opening}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done() and opening.exception() is None:
                on_ready(settings, address_of(listener, settings.network), opening.result(), engine is not None)
                await serving
                return STOPPED
            return await _failed(process, serving, opening)
        finally:
            if engine is not None:
                await engine.close()

    with asyncio.Runner(loop_factory=process.config.get_loop_factory()) as runner:
        return runner.run(main())


async def _open(settings: Settings, engine: Engine | None, gate: Gate, process: HttpProcess) -> str:
    """Start the engine and let requests in; returns the served name."""
    if engine is not None:
        with loading(settings, engine):
            await engine.start()
    server = build_server(settings, engine)
    process.server = server
    gate.open(create_app(server))
    return server.models.name


async def _failed(process: HttpProcess, serving: asyncio.Task[None], opening: asyncio.Task[str]) -> int:
    """The engine did not start, or the process was told to stop before it had."""
    process.should_exit = True
    opening.cancel()
    await asyncio.gather(serving, opening, return_exceptions=True)
    error = None if opening.cancelled() else opening.exception()
    if isinstance(error, TokenwireError):
        logger.error("The server did not start: %s", error)
    elif error is not None:
        logger.error("The server did not start", exc_info=error)
    return START_FAILED if error is not None else STOPPED
