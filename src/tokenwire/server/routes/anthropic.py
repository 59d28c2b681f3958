"""Anthropic's endpoints: messages, and how many tokens a conversation has. Errors have Anthropic's shape."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from tokenwire.server.answering import send_stream, send_whole
from tokenwire.server.headers import reply_format, request_context
from tokenwire.server.named_events import MessagesFraming
from tokenwire.server.reading import read_request
from tokenwire.server.routes.openai import endpoints_of
from tokenwire.server.routes.render import render_of
from tokenwire.server.routing import RouteSpec
from tokenwire.service.render import RenderService
from tokenwire.wire.messages import CountTokensRequest, MessagesRequest
from tokenwire.wire.messages_reply import CountTokensResponse, MessagesResponse


class MessagesEndpoint:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server, request = await read_request(MessagesRequest, scope, receive)
        service = endpoints_of(server).messages
        prepared = await service.prepare(request, request_context(scope, "json"))
        if request.stream:
            batches, name = service.stream(prepared), prepared.request_id
            await send_stream(server, batches, MessagesFraming(), receive, send, name=name)
        else:
            await send_whole(service.full(prepared), reply_format(scope), receive, send)


class CountTokensEndpoint:
    """Needs no engine."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server, request = await read_request(CountTokensRequest, scope, receive)
        await send_whole(_count(render_of(server), request), reply_format(scope), receive, send)


async def _count(render: RenderService, request: CountTokensRequest) -> CountTokensResponse:
    return CountTokensResponse(input_tokens=await render.count_tokens(request))


ROUTES = [
    RouteSpec(
        path="/v1/messages",
        endpoint=MessagesEndpoint(),
        summary="A conversation's next message, in Anthropic's words.",
        methods=("POST",),
        request=MessagesRequest,
        response=MessagesResponse,
        tag="text",
        streams=True,
        needs_engine=True,
        generates=True,
    ),
    RouteSpec(
        path="/v1/messages/count_tokens",
        endpoint=CountTokensEndpoint(),
        summary="How many tokens a conversation has.",
        methods=("POST",),
        request=CountTokensRequest,
        response=CountTokensResponse,
        tag="text",
    ),
]
