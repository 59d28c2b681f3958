"""One server process from start to end: the socket, the engine beside it, the application once both are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tokenwire.commands.adapters import lora_modules
from tokenwire.commands.engines import make_engine
from tokenwire.commands.memory import release_start_up_memory
from tokenwire.commands.opening import model_folder, open_server
from tokenwire.commands.progress import LoadProgress
from tokenwire.engine.base import Engine
from tokenwire.errors import TokenwireError
from tokenwire.server.app import create_app
from tokenwire.server.build import message_format
from tokenwire.server.process import Gate, HttpProcess, address_of, bind, unbind, uvicorn_config
from tokenwire.settings import Settings

logger = logging.getLogger("tokenwire")

STOPPED = 0
START_FAILED = 1

OnReady = Callable[[Settings, str, str, bool], None]
"""Told settings, address, model name, and whether there is an engine."""


def run(settings: Settings, *, with_engine: bool, on_ready: OnReady) -> int:
    """Run to the end; returns the exit code. Raises `SettingsError` before anything has started."""
    message_format(settings.chat)  # an unknown parser is known before anything is loaded
    lora_modules(settings.adapters)
    if settings.network.api_server_count > 1:
        from tokenwire.commands import supervisor

        return supervisor.run(settings, with_engine=with_engine, on_ready=on_ready)
    progress = LoadProgress()
    engine = make_engine(settings, progress) if with_engine else None
    listener = bind(settings.network)
    gate = Gate()
    process = HttpProcess(
        uvicorn_config(gate, settings.network, settings.logs), shutdown_timeout_s=settings.network.shutdown_timeout
    )

    async def main() -> int:
        serving = asyncio.create_task(process.serve([listener]))
        opening = asyncio.create_task(_open(settings, engine, gate, process, progress))
        try:
            await asyncio.wait({serving, opening}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done() and opening.exception() is None:
                on_ready(settings, address_of(listener, settings.network), opening.result(), engine is not None)
                await serving
                return STOPPED
            return await _not_opened(process, serving, opening)
        finally:
            await close(engine, process)

    try:
        with asyncio.Runner(loop_factory=process.config.get_loop_factory()) as runner:
            return runner.run(main())
    finally:
        unbind(settings.network)


async def _open(
    settings: Settings, engine: Engine | None, gate: Gate, process: HttpProcess, progress: LoadProgress
) -> str:
    """Load what is needed and let requests in; returns the served name."""
    with progress.shown():
        folder = await model_folder(settings, progress, with_engine=engine is not None)
        server = await open_server(settings, engine, folder)
    process.server = server
    app = create_app(server)
    release_start_up_memory()
    gate.open(app)
    return server.models.name


async def _not_opened(process: HttpProcess, serving: asyncio.Task[None], opening: asyncio.Task[str]) -> int:
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


async def close(engine: Engine | None, process: HttpProcess) -> None:
    """End what a server had running."""
    if engine is not None:
        await engine.close()
    if process.server is not None and process.server.tracing is not None:
        await asyncio.to_thread(process.server.tracing.close)
