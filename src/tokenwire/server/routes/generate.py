"""`/inference/v1/generate` and its abort: the hot path, written against ASGI itself.

A whole reply is one send; a stream sends one piece per wake-up of the engine with all events that are ready.
Waiting for the client to take a piece slows this stream only.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenwire.errors import BodyValidationError
from tokenwire.server.body import read_as, read_body
from tokenwire.server.context import Server, generate_of, server_of
from tokenwire.server.disconnect import DisconnectWatch
from tokenwire.server.errors import MEDIA_TYPES, encode_error, log_error, status_of
from tokenwire.server.frames import DONE_FRAMES, STREAM_TYPES, frame_events, frame_payload
from tokenwire.server.headers import reply_format, request_context
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec
from tokenwire.service.generate import GenerateService, PreparedGenerate
from tokenwire.wire.codec import Format, encode
from tokenwire.wire.generate import DerenderChoice, GenerateRequest, GenerateResponse, TextChoice, TokensChoice


class GenerateEndpoint:
    """An ASGI callable; errors before the first byte are raised and become replies in the error layer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = server_of(scope)
        service = generate_of(server)
        limit = server.settings.network.max_body_bytes
        request, unknown = await read_as(GenerateRequest, scope, receive, limit)
        fmt = reply_format(scope)
        prepared = await service.prepare(request, request_context(scope, fmt), unknown)
        if request.stream:
            await _stream(server, service, prepared, fmt, receive, send)
        else:
            await _full(server, service, prepared, fmt, receive, send)


async def _full(
    server: Server, service: GenerateService, prepared: PreparedGenerate, fmt: Format, receive: Receive, send: Send
) -> None:
    async with DisconnectWatch(receive) as watch:
        response = await service.full(prepared)
    if watch.gone:
        return
    if server.log is not None:
        server.log.reply(prepared, response.choices)
    payload = encode(response, fmt)
    headers = [(b"content-type", MEDIA_TYPES[fmt]), (b"content-length", str(len(payload)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": payload})


async def _stream(
    server: Server, service: GenerateService, prepared: PreparedGenerate, fmt: Format, receive: Receive, send: Send
) -> None:
    headers = [
        (b"content-type", STREAM_TYPES[fmt]),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx in front passes events on as they come
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    tail = DONE_FRAMES[fmt]
    async with DisconnectWatch(receive) as watch:
        try:
            async with aclosing(service.stream(prepared)) as batches:
                async for events in batches:
                    if server.log is not None:
                        server.log.reply(prepared, [choice for event in events for choice in event.choices])
                    await send({"type": "http.response.body", "body": frame_events(events, fmt), "more_body": True})
        except Exception as exc:
            log_error(exc, f"stream {prepared.request_id}")
            server.metrics.error(status_of(exc))
            tail = frame_payload(encode_error(exc, fmt), fmt) + tail
    if not watch.gone:
        await send({"type": "http.response.body", "body": tail})


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ids as replies show them, with or without the `generate-tokens-` prefix."""

    request_ids: list[str]


class AbortResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Answered once the engine has let go of the requests; unknown ids are no error."""

    aborted: list[str]
    unknown: list[str]


async def abort_requests(request: Request) -> Response:
    server = server_of(request.scope)
    body = await read_body(request.scope, request.receive, server.settings.network.max_body_bytes)
    ids = _request_ids(body)
    aborted, unknown = await generate_of(server).abort(ids)
    return WireResponse(AbortResponse(aborted=aborted, unknown=unknown))


def _request_ids(body: bytes) -> list[str]:
    """Upstream reads this body whatever its content type, with these sentences."""
    try:
        plain: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise BodyValidationError([("body", f"JSON decode error: {exc}")]) from exc
    ids = plain.get("request_ids") if isinstance(plain, dict) else None
    if not ids:
        raise BodyValidationError([("body.request_ids", "Missing 'request_ids' in request body")])
    try:
        return msgspec.convert(ids, list[str])
    except msgspec.ValidationError as exc:
        raise BodyValidationError([("body.request_ids", f"request_ids must be a list of strings: {exc}")]) from exc


ROUTES = [
    RouteSpec(
        path="/inference/v1/generate",
        endpoint=GenerateEndpoint(),
        summary="Token ids in, token ids out; whole or as server-sent events.",
        methods=("POST",),
        request=GenerateRequest,
        response=GenerateResponse,
        choices=(TokensChoice, TextChoice, DerenderChoice),
        tag="tokens",
        streams=True,
        needs_engine=True,
        generates=True,
    ),
    RouteSpec(
        path="/inference/v1/abort_requests",
        endpoint=abort_requests,
        summary="End requests by id; they answer with what they had.",
        methods=("POST",),
        request=AbortRequest,
        response=AbortResponse,
        tag="control",
        needs_engine=True,
        control=True,
    ),
]
