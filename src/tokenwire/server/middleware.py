"""Plain ASGI layers around the routes: errors to replies, and request ids in response headers."""

from __future__ import annotations

import uuid

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenwire.server.absent import not_served
from tokenwire.server.body import ClientGoneError
from tokenwire.server.context import Server
from tokenwire.server.errors import MEDIA_TYPES, encode_error, error_headers, log_error, status_of
from tokenwire.server.headers import header, reply_format
from tokenwire.server.messages_errors import messages_error, speaks_messages
from tokenwire.wire.codec import encode


async def send_error(error: BaseException, scope: Scope, send: Send) -> None:
    """The reply that the error table gives, in the format that the caller reads."""
    fmt = reply_format(scope)
    payload = encode(messages_error(error), fmt) if speaks_messages(scope) else encode_error(error, fmt)
    headers = [
        (b"content-type", MEDIA_TYPES[fmt]),
        (b"content-length", str(len(payload)).encode()),
        *error_headers(error),
    ]
    await send({"type": "http.response.start", "status": status_of(error).code, "headers": headers})
    await send({"type": "http.response.body", "body": payload})


class ErrorMiddleware:
    """Every exception of a route becomes one reply, if none has begun; a begun one is broken off by raising on."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server
        self._stack = server.settings.logs.log_error_stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientGoneError:
            return
        except Exception as exc:
            log_error(exc, f"{scope['method']} {scope['path']}", stack=self._stack)
            self._server.metrics.error(status_of(exc))
            if begun:
                raise
            await send_error(exc, scope, send)


class RequestIdMiddleware:
    """Answers with `X-Request-Id`: the caller's, else a fresh one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = header(scope, b"x-request-id") or uuid.uuid4().hex

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode("latin-1"))]
            await send(message)

        await self._app(scope, receive, with_id)


async def http_exception(request: Request, exc: Exception) -> Response:
    """Unknown paths and methods answer `{"detail": ...}`, as upstream's framework does; routes we lack say so."""
    assert isinstance(exc, HTTPException)
    lacking = not_served(request.scope["path"].removeprefix(request.scope.get("root_path", "")))
    if exc.status_code == 404 and lacking is not None:
        raise lacking
    return JSONResponse({"detail": exc.detail}, exc.status_code, headers=dict(exc.headers or {}))
