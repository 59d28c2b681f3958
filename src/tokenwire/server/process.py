"""The HTTP process: it answers from the first second, drains on SIGTERM, and ends with an honest exit code.

While the engine loads, a gate answers probes; then the real application takes its place. A first SIGTERM or
SIGINT lets running requests finish within the limit, then aborts them; a second one ends everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from tokenwire.errors import EngineUnavailableError
from tokenwire.server.context import Server
from tokenwire.server.middleware import send_error
from tokenwire.settings import LogSettings, NetworkSettings, SettingsError

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
BACKLOG = 2048
LAST_BYTES_S = 5
"""How long a client may take to read the end of its reply once its request is done."""


class Gate:
    """Stands at the door until the application is there: `/livez` answers, everything else says 503."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None

    def open(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["path"] == "/livez":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})
        else:
            await send_error(EngineUnavailableError("The engine is starting.", retry_after_s=2), scope, send)


class HttpProcess(uvicorn.Server):
    """uvicorn, but a stop signal drains first, and does not become the process's own death."""

    def __init__(self, config: uvicorn.Config, *, shutdown_timeout_s: float, heeds_signals: bool = True) -> None:
        """`heeds_signals`: False where another process gets them and says when to `stop`."""
        super().__init__(config)
        self._signals = STOP_SIGNALS if heeds_signals else ()
        self._shutdown_timeout_s = shutdown_timeout_s
        self._stopping: asyncio.Task[None] | None = None
        self.server: Server | None = None
        """Set once the application is there."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in self._signals:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Begin to drain; called again, do not wait any longer."""
        if self._stopping is not None:
            self.force_exit = self.should_exit = True
            return
        self._stopping = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        server = self.server
        if server is not None:
            server.drain()
            if server.live.num_live:
                logger.info(
                    "Stopping: %d requests may finish within %gs", server.live.num_live, self._shutdown_timeout_s
                )
            if not await server.live.wait_idle(self._shutdown_timeout_s) and server.generate is not None:
                logger.warning("Aborting %d requests that did not finish", await server.generate.abort_all())
        self.should_exit = True


def uvicorn_config(app: ASGIApp, network: NetworkSettings, logs: LogSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="auto",
        http="auto",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=not logs.disable_uvicorn_access_log,
        server_header=False,
        root_path=network.root_path,
        timeout_keep_alive=network.http_timeout_keep_alive,
        timeout_graceful_shutdown=LAST_BYTES_S,
        h11_max_incomplete_event_size=network.h11_max_incomplete_event_size,
        ssl_keyfile=network.ssl_keyfile,
        ssl_certfile=network.ssl_certfile,
        ssl_ca_certs=network.ssl_ca_certs,
        ssl_cert_reqs=network.ssl_cert_reqs,
        ssl_ciphers=network.ssl_ciphers,
    )


def bind(network: NetworkSettings) -> socket.socket:
    """The listening socket, open before the model is loaded: a taken port is known at once, and early callers wait.

    Raises `SettingsError` when the address cannot be had.
    """
    where = network.uds or f"{network.host}:{network.port}"
    try:
        if network.uds is not None:
            return _bind_unix(network.uds)
        infos = socket.getaddrinfo(network.host, network.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = infos[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        return listener
    except OSError as exc:
        raise SettingsError(f"Cannot listen on {where}: {exc.strerror or exc}.") from exc


def reserve(network: NetworkSettings) -> socket.socket:
    """An address for several processes: bound and not listening, so that it is ours and no caller waits at it.

    Each process takes its own socket there with `join`. A Unix socket listens already: it has no second one, all
    processes share it. Raises `SettingsError` when the address cannot be had, also when another server shares it.
    """
    if network.uds is not None:
        return bind(network)
    with contextlib.closing(bind(network)) as probe:  # alone: another one that shares the address is noticed
        address = probe.getsockname()
    try:
        return _shared_socket(probe.family, address)
    except OSError as exc:
        raise SettingsError(f"Cannot listen on {network.host}:{network.port}: {exc.strerror or exc}.") from exc


def join(family: int, address: tuple[Any, ...]) -> socket.socket:
    """One more listening socket at a reserved address; the kernel deals connections out among them."""
    listener = _shared_socket(family, address)
    listener.listen(BACKLOG)
    return listener


def _shared_socket(family: int, address: tuple[Any, ...]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(address)
    return one


def _bind_unix(path: str) -> socket.socket:
    """Takes the place of a socket file that nobody listens on any more."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
        except OSError:
            pass
    listener.bind(path)
    listener.listen(BACKLOG)
    return listener


def unbind(network: NetworkSettings) -> None:
    """A Unix socket's file does not go by itself."""
    if network.uds is not None:
        Path(network.uds).unlink(missing_ok=True)


def address_of(listener: socket.socket, network: NetworkSettings) -> str:
    """The address as a caller on this machine would write it."""
    if network.uds is not None:
        return f"unix:{network.uds}"
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if network.ssl_certfile else 'http'}://{host}:{port}"
