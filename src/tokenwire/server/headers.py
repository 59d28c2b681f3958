"""What headers say: the reply's format, and the context of a generate request."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from starlette.types import Scope

from tokenwire.service.context import RequestContext
from tokenwire.wire.codec import Format

TRACE_HEADERS = ("traceparent", "tracestate")


def header(scope: Scope, name: bytes) -> str:
    """The first value of a header, given in lower case; empty when absent."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return ""


def reply_format(scope: Scope) -> Format:
    """MessagePack when Accept names it before JSON, or when the request came in it and Accept takes anything."""
    types = list(_media_types(header(scope, b"accept")))
    for media_type in types:
        if media_type in ("application/msgpack", "application/x-msgpack"):
            return "msgpack"
        if media_type in ("application/json", "text/event-stream"):
            return "json"
    return "msgpack" if "msgpack" in header(scope, b"content-type") else "json"


def _media_types(accept: str) -> Iterator[str]:
    for part in accept.lower().split(","):
        media_type, _, options = part.partition(";")
        if not _REFUSED.search(options):
            yield media_type.strip()


_REFUSED = re.compile(r"(^|;)\s*q\s*=\s*0(\.0*)?\s*(;|$)")
"""Named in Accept, but as what must not come."""


def request_context(scope: Scope, fmt: Format) -> RequestContext:
    """One pass over the headers. A rank that is no integer counts as absent, as upstream has it."""
    found: dict[bytes, str] = {}
    for key, value in scope["headers"]:
        if key in _WANTED:
            found.setdefault(key, bytes(value).decode("latin-1"))
    if not found:
        return RequestContext(arrival_time=time.time(), binary=fmt == "msgpack")
    trace = {name: found[name.encode()] for name in TRACE_HEADERS if name.encode() in found}
    return RequestContext(
        arrival_time=time.time(),
        request_id_header=found.get(b"x-request-id") or None,
        session_id=found.get(b"x-session-id") or None,
        data_parallel_rank=_rank(found.get(b"x-data-parallel-rank")),
        trace_headers=trace or None,
        prefer_cached="if-available" in found.get(b"prefer", "").lower().replace(" ", "").split(","),
        binary=fmt == "msgpack",
    )


_WANTED = frozenset(
    {b"x-request-id", b"x-session-id", b"x-data-parallel-rank", b"prefer", *(t.encode() for t in TRACE_HEADERS)}
)


def _rank(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
