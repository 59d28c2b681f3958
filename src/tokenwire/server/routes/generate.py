"""`/inference/v1/generate` and its abort: the hot path, written against ASGI itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenwire.errors import BodyValidationError
from tokenwire.server.answering import PlainFraming, send_stream, send_whole
from tokenwire.server.body import read_as, read_body
from tokenwire.server.context import generate_of, server_of
from tokenwire.server.headers import reply_format, request_context
from tokenwire.server.observers import LogObserver
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec
from tokenwire.service.generate import PreparedGenerate
from tokenwire.wire.generate import (
    DerenderChoice,
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    TextChoice,
    TokensChoice,
    UsageChunk,
)


class GenerateEndpoint:
    """An ASGI callable; errors before the first byte are raised and become replies in the error layer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = server_of(scope)
        service = generate_of(server)
        limit = server.settings.network.max_body_bytes
        request, unknown = await read_as(GenerateRequest, scope, receive, limit)
        fmt = reply_format(scope)
        prepared = await service.prepare(request, request_context(scope, fmt), unknown)
        log = server.log
        if request.stream:
            told = None if log is None else partial(_log_events, log, prepared)
            batches, name = service.stream(prepared), prepared.request_id
            await send_stream(server, batches, PlainFraming(fmt), receive, send, name=name, on_events=told)
        else:
            whole = None if log is None else partial(_log_reply, log, prepared)
            await send_whole(service.full(prepared), fmt, receive, send, on_reply=whole)


def _log_reply(log: LogObserver, prepared: PreparedGenerate, reply: GenerateResponse) -> None:
    log.reply(prepared, reply.choices)


def _log_events(log: LogObserver, prepared: PreparedGenerate, events: list[GenerateChunk | UsageChunk]) -> None:
    log.reply(prepared, [choice for event in events for choice in event.choices])


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
