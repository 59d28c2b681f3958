"""`/v1/chat/completions/derender` and `/v1/completions/derender`: one path for whole replies and for stream chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tokenwire.errors import UnsupportedFeatureError
from tokenwire.server.body import DECODE_IN_THREAD_BYTES, body_format, read_body
from tokenwire.server.context import Server, server_of
from tokenwire.server.errors import MEDIA_TYPES
from tokenwire.server.headers import reply_format
from tokenwire.server.routing import RouteSpec
from tokenwire.service.derender import DerenderService
from tokenwire.service.tokenizerless import without_tokenizer
from tokenwire.wire.chat_reply import ChatCompletionResponse
from tokenwire.wire.codec import Format, encode
from tokenwire.wire.completion_reply import CompletionResponse
from tokenwire.wire.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    decode_chat,
    decode_completion,
)

Decode = Callable[[bytes, Format], tuple[Any, tuple[str, ...]]]


async def derender_chat(request: Request) -> Response:
    service, body = await _read(request, decode_chat)
    if isinstance(body, DerenderChatStreamRequest):
        return await _reply(request, service.chat_stream(body))
    return await _reply(request, service.chat(body))


async def derender_completion(request: Request) -> Response:
    service, body = await _read(request, decode_completion)
    if isinstance(body, DerenderCompletionStreamRequest):
        return await _reply(request, service.completion_stream(body))
    return await _reply(request, service.completion(body))


async def _read(request: Request, decode: Decode) -> tuple[DerenderService, Any]:
    """The service and the decoded body. Raises `UnsupportedFeatureError` on a server without a tokenizer."""
    server = server_of(request.scope)
    service = _service(server)
    fmt = body_format(request.scope)
    raw = await read_body(request.scope, request.receive, server.settings.network.max_body_bytes)
    in_thread = len(raw) >= DECODE_IN_THREAD_BYTES
    body, unknown = await asyncio.to_thread(decode, raw, fmt) if in_thread else decode(raw, fmt)
    server.note_unknown(unknown)
    return service, body


def _service(server: Server) -> DerenderService:
    if server.derender is None:
        raise UnsupportedFeatureError(
            "derender",
            value="...",
            where=without_tokenizer(server.engine),
            way_out="Ask a server that loads one: tokenwire render needs no engine.",
        )
    return server.derender


async def _reply(request: Request, work: Awaitable[Any]) -> Response:
    fmt = reply_format(request.scope)
    return Response(encode(await work, fmt), media_type=MEDIA_TYPES[fmt].decode())


ROUTES = [
    RouteSpec(
        path="/v1/chat/completions/derender",
        endpoint=derender_chat,
        summary="A token reply, whole or one stream chunk, as a chat reply.",
        methods=("POST",),
        request=DerenderChatRequest | DerenderChatStreamRequest,
        response=ChatCompletionResponse,
        tag="text",
    ),
    RouteSpec(
        path="/v1/completions/derender",
        endpoint=derender_completion,
        summary="Token replies, whole or one stream chunk, as a completion reply.",
        methods=("POST",),
        request=DerenderCompletionRequest | DerenderCompletionStreamRequest,
        response=CompletionResponse,
        tag="text",
    ),
]
