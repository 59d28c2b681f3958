"""One request on the clock: when its tokens came. Decodes only what it must count."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tokenwire.client.errors import error_from_reply
from tokenwire.client.sse import SSEParser


@dataclass(slots=True)
class RequestResult:
    """Times are `perf_counter` seconds. `failure` is None for a request that was answered in full."""

    start: float
    """When the request was due: with a request rate that may be before it was sent."""
    first: float | None = None
    """First token; None for a reply that was not streamed."""
    end: float = 0.0
    num_tokens: int = 0
    gaps: array[float] = field(default_factory=lambda: array("d"))
    """Seconds between tokens, one for each token after the first chunk. Tokens that come in one chunk share its gap."""
    failure: str | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None


class _Reply(msgspec.Struct):
    """A whole reply or one event, as far as it is counted."""

    choices: list[_Choice] = []
    error: Any = None


_decode = msgspec.json.Decoder(_Reply).decode


class Meter:
    """Takes the body of one reply as it arrives and fills in a result."""

    def __init__(self, result: RequestResult, *, stream: bool) -> None:
        self._result = result
        self._stream = stream
        self._sse = SSEParser()
        self._body: list[bytes] = []
        self._is_done = False
        self._last = 0.0

    def feed(self, data: bytes, now: float) -> None:
        if not self._stream:
            self._body.append(data)
            return
        if not self._result.num_tokens:
            self._body.append(data)  # until tokens came this may be an error reply
        for event in self._sse.feed(data):
            if event.data == b"[DONE]":
                self._is_done = True
            else:
                self._event(event.data, now)

    def _event(self, data: bytes, now: float) -> None:
        try:
            reply = _decode(data)
        except msgspec.DecodeError as exc:
            self._fail(f"an event that is not the protocol's: {exc}")
            return
        if reply.error is not None:
            self._fail(f"error event: {error_from_reply(500, data, where='the stream').message}")
        for choice in reply.choices:
            if choice.token_ids:
                self._tokens(len(choice.token_ids), now)

    def _tokens(self, count: int, now: float) -> None:
        result = self._result
        result.num_tokens += count
        if result.first is None:
            result.first = now
        else:
            result.gaps.extend([(now - self._last) / count] * count)
        self._last = now

    def finish(self, status: int, now: float) -> None:
        """The reply is whole."""
        self._result.end = now
        if status != 200:
            error = error_from_reply(status, b"".join(self._body), where="the server")
            self._fail(f"{status}: {error.message}")
        elif not self._stream:
            self._count_whole()
        elif not self._is_done:
            self._fail("the stream ended before [DONE]")

    def _count_whole(self) -> None:
        try:
            reply = _decode(b"".join(self._body))
        except msgspec.DecodeError as exc:
            self._fail(f"a reply that is not the protocol's: {exc}")
            return
        self._result.num_tokens = sum(len(choice.token_ids or ()) for choice in reply.choices)

    def _fail(self, why: str) -> None:
        if self._result.failure is None:
            self._result.failure = why.splitlines()[0][:200]
