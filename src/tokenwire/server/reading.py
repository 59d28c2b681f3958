"""How most routes begin: the body as the wire type they take, and a word about fields that nobody knows."""

from __future__ import annotations

from typing import TypeVar

from starlette.types import Receive, Scope

from tokenwire.server.body import read_as
from tokenwire.server.context import Server, server_of

T = TypeVar("T")


async def read_request(kind: type[T], scope: Scope, receive: Receive) -> tuple[Server, T]:
    """The server and the decoded body; unknown fields are counted, or refused by --strict-fields."""
    server = server_of(scope)
    body, unknown = await read_as(kind, scope, receive, server.settings.network.max_body_bytes)
    server.note_unknown(unknown)
    return server, body
