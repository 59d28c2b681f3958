"""A coordinator over real workers on real sockets: scripted engines behind the server, a remote engine before them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.http import app_of, serving
from tests.support.scripted_engine import ScriptedEngine
from tokenwire.engine.base import EngineOutput, EngineRequest
from tokenwire.engine.remote import RemoteEngine, RemoteOptions
from tokenwire.errors import TokenwireError
from tokenwire.wire.sampling import SamplingParams

FAST: dict[str, Any] = {"health_interval_s": 0.05, "health_timeout_s": 0.5, "abort_grace_s": 1.0, "start_timeout_s": 5}


@contextlib.asynccontextmanager
async def worker(engine: ScriptedEngine, **settings: Any) -> AsyncIterator[str]:
    """A tokenwire server over `engine`; gives its URL."""
    async with serving(app_of(engine, **settings)) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def remote(*urls: str, **options: Any) -> AsyncIterator[RemoteEngine]:
    """A started remote engine over workers."""
    engine = RemoteEngine(RemoteOptions(workers=urls, **{**FAST, **options}))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


def request(
    token_ids: list[int] | None = None, *, request_id: str = "r", stream: bool = True, **fields: Any
) -> EngineRequest:
    """An engine request; fields that EngineRequest has no name for go into the sampling parameters."""
    names = EngineRequest.__dataclass_fields__
    sampling = {"max_tokens": 4, **{k: v for k, v in fields.items() if k not in names}}
    rest = {k: v for k, v in fields.items() if k in names}
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=token_ids or [1, 2, 3],
        sampling=SamplingParams(**sampling),
        stream=stream,
        **rest,
    )


async def outputs_of(engine: RemoteEngine, asked: EngineRequest) -> list[EngineOutput]:
    """Everything of a request, in order."""
    return [output async for outputs in engine.generate(asked) for output in outputs]


async def until_error(engine: RemoteEngine, asked: EngineRequest) -> tuple[list[EngineOutput], TokenwireError | None]:
    """What came before the stream failed, and how it failed."""
    got: list[EngineOutput] = []
    try:
        async for outputs in engine.generate(asked):
            got += outputs
    except TokenwireError as error:
        return got, error
    return got, None


def ids_of(outputs: list[EngineOutput], index: int = 0) -> list[int]:
    return [token_id for output in outputs if output.index == index for token_id in output.token_ids]


@dataclass
class RawServer:
    """Answers HTTP by hand: `answer` gets path and body and writes what it likes."""

    answer: Callable[[str, bytes, asyncio.StreamWriter], Any]
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[str]:
        tasks: set[asyncio.Task[None]] = set()

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.create_task(self._serve(reader, writer)))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # transports close on the next turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer_all(reader, writer)
        finally:
            writer.transport.abort()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                body = await reader.readexactly(length)
                path = head.split(b" ")[1].decode()
                self.seen.append((path, body))
                self.heads.append(head)
                result = self.answer(path, body, writer)
                if asyncio.iscoroutine(result):
                    await result
                await writer.drain()


def reply(writer: asyncio.StreamWriter, body: bytes, status: int = 200, content_type: str = "application/json") -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def stream(
    writer: asyncio.StreamWriter, events: list[bytes], *, pause_s: float = 0.0, end: bool = True, cut: bool = False
) -> None:
    """Server-sent events, chunked; `cut` leaves the connection in the middle."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for event in [*events, *([b"[DONE]"] if end and not cut else [])]:
        piece = b"data: " + event + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(pause_s)
    if cut:
        writer.transport.abort()
    else:
        writer.write(b"0\r\n\r\n")
