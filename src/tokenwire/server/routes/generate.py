"""`/inference/v1/generate` and its abort: the hot path, written against ASGI itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenwire.errors import BodyValidationError
from tokenwire.server import peers
from tokenwire.server.answering import EncodedFraming, PlainFraming, send_stream, send_whole
from tokenwire.server.body import read_as, read_body
from tokenwire.server.context import generate_of, server_of
from tokenwire.server.errors import MEDIA_TYPES
from tokenwire.server.headers import header, reply_format, request_context
from tokenwire.server.observers import LogObserver
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec
from tokenwire.service.generate import PreparedGenerate
from tokenwire.wire.codec import encode, refuse_half_pairs
from tokenwire.wire.generate import (
    DerenderChoice,
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    TextChoice,
    TokensChoice,
    UsageChunk,
    request_with_ids_below,
)


class GenerateEndpoint:
    """An ASGI callable; errors before the first byte are raised and become replies in the error layer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = server_of(scope)
        service = generate_of(server)
        limit = server.settings.network.max_body_bytes
        narrower = request_with_ids_below(service.engine.info.vocab_size)
        request, unknown = await read_as(GenerateRequest, scope, receive, limit, narrower=narrower)
        fmt = reply_format(scope)
        prepared = await service.prepare(request, request_context(scope, fmt), unknown)
        log = server.log
        if request.stream:
            name = prepared.request_id
            if log is None:
                payloads = service.encoded_stream(prepared)
                await send_stream(server, payloads, EncodedFraming(fmt), receive, send, name=name)
            else:
                told, batches = partial(_log_events, log, prepared), service.stream(prepared)
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


class AbortSomeRequest(msgspec.Struct, frozen=True, kw_only=True):
    request_ids: list[str] | None = None
    """None or empty: every request."""


class AbortAllResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What trainers read: how many requests ended."""

    status: str = "aborted"
    aborted: int


async def abort_requests(request: Request) -> Response:
    ids = _ids_in(await _body(request), header(request.scope, b"content-type"))
    if not ids:
        raise _missing_ids()
    aborted, unknown = await peers.abort(server_of(request.scope), ids)
    fmt = reply_format(request.scope)
    content = encode(AbortResponse(aborted=aborted, unknown=unknown), fmt)
    return Response(content, media_type=MEDIA_TYPES[fmt].decode())


async def abort_some_or_all(request: Request) -> Response:
    """A trainer's abort between two weight versions: without ids, or without a body, everything ends."""
    server = server_of(request.scope)
    body = await _body(request)
    ids = _ids_in(body, header(request.scope, b"content-type")) if body else []
    count = len((await peers.abort(server, ids))[0]) if ids else await peers.abort_all(server)
    return WireResponse(AbortAllResponse(aborted=count))


async def _body(request: Request) -> bytes:
    limit = server_of(request.scope).settings.network.max_body_bytes
    return await read_body(request.scope, request.receive, limit)


def _ids_in(body: bytes, content_type: str) -> list[str]:
    """Empty where the body names none. JSON unless the type says MessagePack: upstream asks for no type here."""
    in_msgpack = "msgpack" in content_type
    if not in_msgpack:
        refuse_half_pairs(body)
    try:
        plain: Any = msgspec.msgpack.decode(body) if in_msgpack else msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        noun = "MessagePack" if in_msgpack else "JSON"
        raise BodyValidationError([("body", f"{noun} decode error: {exc}")]) from exc
    if not isinstance(plain, dict):
        raise _missing_ids()
    ids = plain.get("request_ids")
    if not ids:
        return []
    try:
        return msgspec.convert(ids, list[str])
    except msgspec.ValidationError as exc:
        raise BodyValidationError([("body.request_ids", f"request_ids must be a list of strings: {exc}")]) from exc


def _missing_ids() -> BodyValidationError:
    return BodyValidationError([("body.request_ids", "Missing 'request_ids' in request body")])


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
    RouteSpec(
        path="/abort_requests",
        endpoint=abort_some_or_all,
        summary="End requests by id, or without ids all of them.",
        methods=("POST",),
        request=AbortSomeRequest,
        response=AbortAllResponse,
        tag="control",
        needs_engine=True,
        control=True,
        dev=True,
    ),
]
