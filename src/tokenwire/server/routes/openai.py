"""OpenAI's ordinary endpoints: chats, completions, stateless responses, and SageMaker's `/invocations` over them."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenwire.errors import BodyValidationError, InvalidRequestError, UnsupportedFeatureError
from tokenwire.server.answering import PlainFraming, send_stream, send_whole
from tokenwire.server.body import body_format, read_body
from tokenwire.server.context import Endpoints, Server, server_of
from tokenwire.server.headers import header, reply_format, request_context
from tokenwire.server.named_events import ResponsesFraming
from tokenwire.server.reading import read_request
from tokenwire.server.routing import RouteSpec
from tokenwire.service.chat import ChatService
from tokenwire.service.completion import CompletionService
from tokenwire.service.responses import NOT_STORED
from tokenwire.service.tokenizerless import without_tokenizer
from tokenwire.wire import codec
from tokenwire.wire.chat import ChatCompletionRequest, CommonSampling
from tokenwire.wire.chat_reply import ChatCompletionResponse
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.completion_reply import CompletionResponse
from tokenwire.wire.responses import ResponsesRequest
from tokenwire.wire.responses_reply import ResponsesResponse

MAX_PRIORITY = 2**63 - 1


def endpoints_of(server: Server) -> Endpoints:
    """Raises `UnsupportedFeatureError` on a server without a tokenizer."""
    if server.endpoints is None:
        raise UnsupportedFeatureError(
            "messages",
            value="...",
            where=without_tokenizer(server.engine),
            way_out="Send ids to /inference/v1/generate, or ask a server that loads a tokenizer.",
        )
    return server.endpoints


def with_priority(request: Any, scope: Scope) -> Any:
    """`X-Vllm-Priority` wins over the body's; a value that is no integer counts as absent."""
    try:
        priority = int(header(scope, b"x-vllm-priority"))
    except ValueError:
        return request
    if abs(priority) > MAX_PRIORITY:
        raise InvalidRequestError(f"X-Vllm-Priority must fit into 64 bits, got {priority}.", param="priority")
    return msgspec.structs.replace(request, priority=priority)


async def _sampled(request: CommonSampling, service: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """A chat or a completion, by its service."""
    fmt = reply_format(scope)
    prepared = await service.prepare(with_priority(request, scope), request_context(scope, "json"))
    if request.stream:
        name = prepared.request_id
        await send_stream(server_of(scope), service.stream(prepared), PlainFraming(fmt), receive, send, name=name)
    else:
        await send_whole(service.full(prepared), fmt, receive, send)


class ChatEndpoint:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server, request = await read_request(ChatCompletionRequest, scope, receive)
        await _sampled(request, endpoints_of(server).chat, scope, receive, send)


class CompletionEndpoint:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server, request = await read_request(CompletionRequest, scope, receive)
        await _sampled(request, endpoints_of(server).completion, scope, receive, send)


class InvocationsEndpoint:
    """A chat if there are `messages`, a completion if there is a `prompt`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = server_of(scope)
        fmt = body_format(scope)
        body = await read_body(scope, receive, server.settings.network.max_body_bytes)
        fields, _ = codec.decode(dict[str, Any], body, fmt)
        services = endpoints_of(server)
        kind: type[Any]
        service: ChatService | CompletionService
        if "messages" in fields:
            kind, service = ChatCompletionRequest, services.chat
        elif "prompt" in fields:
            kind, service = CompletionRequest, services.completion
        else:
            raise BodyValidationError([("body", "a chat needs messages, a completion a prompt; there is neither")])
        request, unknown = codec.convert(kind, fields)
        server.note_unknown(unknown)
        await _sampled(request, service, scope, receive, send)


class ResponsesEndpoint:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server, request = await read_request(ResponsesRequest, scope, receive)
        service, fmt = endpoints_of(server).responses, reply_format(scope)
        prepared = await service.prepare(with_priority(request, scope), request_context(scope, "json"))
        if request.stream:
            batches, name = service.stream(prepared), prepared.request_id
            await send_stream(server, batches, ResponsesFraming(), receive, send, name=name)
        else:
            await send_whole(service.full(prepared), fmt, receive, send)


async def stored_response(request: Request) -> Response:
    """Whatever asks for a stored response is told that there are none."""
    raise UnsupportedFeatureError(
        "response_id", value=request.path_params["response_id"], where="this server", way_out=NOT_STORED
    )


def _spec(path: str, endpoint: Any, summary: str, request: Any = None, response: Any = None) -> RouteSpec:
    return RouteSpec(
        path=path,
        endpoint=endpoint,
        summary=summary,
        methods=("POST",),
        request=request,
        response=response,
        tag="text",
        streams=True,
        needs_engine=True,
        generates=True,
    )


ROUTES = [
    _spec(
        "/v1/chat/completions",
        ChatEndpoint(),
        "A conversation's next message.",
        ChatCompletionRequest,
        ChatCompletionResponse,
    ),
    _spec("/v1/completions", CompletionEndpoint(), "Prompts, continued.", CompletionRequest, CompletionResponse),
    _spec("/v1/responses", ResponsesEndpoint(), "A stateless response.", ResponsesRequest, ResponsesResponse),
    _spec("/invocations", InvocationsEndpoint(), "A chat or a completion, told apart by the body."),
    RouteSpec(
        path="/v1/responses/{response_id}",
        endpoint=stored_response,
        summary="Refused: no responses are stored.",
        methods=("GET", "DELETE"),
        tag="text",
        needs_engine=True,
    ),
    RouteSpec(
        path="/v1/responses/{response_id}/cancel",
        endpoint=stored_response,
        summary="Refused: no responses run in the background.",
        methods=("POST",),
        tag="text",
        needs_engine=True,
    ),
]
