"""What the process that starts a server's front ends and those front ends say to each other, over a socket pair.

MessagePack, each message behind its length (uint32, little-endian). A question goes to the starter, which asks all
other front ends and answers with what they said; so every front end can act for the whole server.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Generic, TypeVar

import msgspec

from tokenwire.engine.control import Pause, Resume
from tokenwire.engine.local.keeper import CoreNews
from tokenwire.server.metrics import Metrics
from tokenwire.settings import Settings

_LENGTH = struct.Struct("<I")


# --- questions to other front ends


class AbortIds(msgspec.Struct, frozen=True, tag="abort_ids"):
    """End requests by the ids that replies show; answered with those that ended, as they were given."""

    ids: list[str]


class AbortBatch(msgspec.Struct, frozen=True, tag="abort_batch"):
    """End the request of this SGLang id, and those of a batch that was made from it. Answered with a count."""

    rid: str


class AbortAll(msgspec.Struct, frozen=True, tag="abort_all"):
    """Answered with a count."""


class Obey(msgspec.Struct, frozen=True, tag="obey"):
    """A control message that engines of all front ends must hear. Answered with the engine's facts."""

    control: Pause | Resume


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one front end has counted, or several together."""

    metrics: Metrics
    num_in_flight: int = 0
    process: dict[str, float] = {}
    """Figures of the operating system, by their names in Prometheus."""


class TellFigures(msgspec.Struct, frozen=True, tag="tell_figures"):
    """Answered with `Figures`. `own` are those of who asks: they must not be lost when it dies."""

    own: Figures


Question = AbortIds | AbortBatch | AbortAll | Obey | TellFigures


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    call: int
    question: Question


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """From a front end: its answer; None if it has none. From the starter: the answers of all others."""

    call: int
    value: Any


# --- starter to front end


class Job(msgspec.Struct, frozen=True, tag="job", kw_only=True):
    """The first message: what to be."""

    settings: Settings
    with_engine: bool
    row: int
    """Which front end of how many; a new one takes the row of one that died."""
    identity: bytes
    """Its name to the cores; a new one has a new name."""
    board: int
    """Descriptor of the board."""
    family: int = 0
    address: Any = None
    """Where to listen, beside the others."""
    listener: int | None = None
    """Descriptor of a listening socket that all share, in place of an address."""
    num_cores: int = 0
    """Cores to attach to, by rank; 0: the front end has an engine of its own, or none."""
    is_late: bool = False
    """Others serve already: listen only once requests can be served."""
    pause: Pause | None = None
    """The server is paused: begin so."""


class ModelAt(msgspec.Struct, frozen=True, tag="model_at"):
    """The model's files lie there."""

    folder: str


class News(msgspec.Struct, frozen=True, tag="news"):
    """What became of the core of this rank."""

    rank: int
    core: CoreNews


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Let running requests finish, then end; said again: end now."""


ToFrontEnd = Job | ModelAt | News | Drain | Ask | Answer


# --- front end to starter


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Requests are served."""

    name: str
    """Of the model, as served."""


class NotStarted(msgspec.Struct, frozen=True, tag="not_started"):
    """Why they never will be."""

    message: str
    exit_code: int


class Obeyed(msgspec.Struct, frozen=True, tag="obeyed"):
    """The cores that are shared did: those that come later begin so."""

    control: Pause | Resume


ToStarter = Started | NotStarted | Obeyed | Ask | Answer


# --- the socket

T = TypeVar("T")
M = TypeVar("M")


class Channel(Generic[T]):
    """One end. Messages are small and few; `send` queues them without waiting."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Any) -> None:
        """`kind` is the union of messages that come in."""
        self._reader = reader
        self._writer = writer
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    @classmethod
    async def over(cls, end: socket.socket, kind: Any) -> Channel[T]:
        end.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, kind)

    def send(self, message: msgspec.Struct) -> None:
        """To a peer that is gone it is lost."""
        if not self._writer.is_closing():
            data = self._encoder.encode(message)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    @staticmethod
    def first(end: socket.socket, kind: type[M]) -> M:
        """Read one message before there is an event loop; waits for it."""
        data = b""
        while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
            missing = _LENGTH.size if len(data) < _LENGTH.size else _LENGTH.size + _LENGTH.unpack_from(data)[0]
            received = end.recv(missing - len(data))
            if not received:
                raise EOFError("the other end was closed before its first message")
            data += received
        return msgspec.msgpack.decode(data[_LENGTH.size :], type=kind)

    async def receive(self) -> T | None:
        """The next message; None once the other end is closed."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def flush(self) -> None:
        """Wait until what was sent is on its way."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        self._writer.close()
