"""A server over a scripted engine, in memory or on a real socket, and a raw client that can leave at any byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from tests.support.scripted_engine import ScriptedEngine
from tokenwire.engine.base import Engine
from tokenwire.server.app import create_app
from tokenwire.server.build import build_server
from tokenwire.server.process import uvicorn_config
from tokenwire.settings import Settings
from tokenwire.settings.sources import build

GENERATE = "/inference/v1/generate"


def settings_of(**values: Any) -> Settings:
    """Settings by their flat names."""
    return build({"served_model_name": ["m"], "disable_uvicorn_access_log": True, **values})


def app_of(engine: Engine | None = None, *, tokenizer: Any = None, **values: Any) -> Any:
    """The application over `engine`; its server is at `app.state.server`."""
    return create_app(build_server(settings_of(**values), engine or ScriptedEngine(), tokenizer=tokenizer))


def client_of(app: ASGIApp, *, client: tuple[str, int] = ("127.0.0.1", 1), **options: Any) -> httpx.AsyncClient:
    """An in-memory client; `client` is the address that the server sees."""
    transport = httpx.ASGITransport(app, client=client)
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30, **options)


def body(token_ids: list[int] | None = None, *, stream: bool = False, **sampling: Any) -> dict[str, Any]:
    """A generate request; `sampling` goes into sampling_params."""
    request: dict[str, Any] = {"token_ids": token_ids or [1, 2, 3], "sampling_params": sampling}
    return {**request, "stream": True} if stream else request


def events_of(text: str) -> list[Any]:
    """The events of a stream; the last must be [DONE], which is left out."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    assert "[DONE]" not in lines[:-1]
    return [json.loads(line, parse_constant=_not_json) for line in lines[:-1]]


def _not_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _QuietServer(uvicorn.Server):
    """Leaves the test runner's signal handlers alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, **values: Any) -> AsyncIterator[int]:
    """The app on a real socket of this event loop; gives the port."""
    settings = settings_of(**values)
    server = _QuietServer(replace_timeout(uvicorn_config(app, settings.network, settings.logs)))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve([listener]))
    await until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


def replace_timeout(config: uvicorn.Config) -> uvicorn.Config:
    config.timeout_graceful_shutdown = 1
    return config


class RawClient:
    """HTTP by hand over one socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, *, limit: int = 2**16) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))

    async def post(self, payload: dict[str, Any], path: str = GENERATE, **headers: str) -> None:
        content = json.dumps(payload).encode()
        lines = [f"POST {path} HTTP/1.1", "host: test", "content-type: application/json"]
        lines += [f"content-length: {len(content)}", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        await self.writer.drain()

    async def read_until(self, mark: bytes) -> bytes:
        return await self.reader.readuntil(mark)

    def drop(self) -> None:
        """Leave without a word: a reset, not an orderly close."""
        transport = self.writer.transport
        transport.abort()


async def until(condition: Any, timeout_s: float = 1.0) -> None:
    """Wait until `condition()` holds; fails after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # what is watched has no event
            await asyncio.sleep(0.005)


__all__ = [
    "GENERATE",
    "RawClient",
    "app_of",
    "body",
    "client_of",
    "events_of",
    "free_port",
    "serving",
    "settings_of",
    "until",
]
