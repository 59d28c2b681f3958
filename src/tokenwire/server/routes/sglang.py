"""SGLang's native routes, for trainers that speak nothing else: `/generate`, `/abort_request`, `/get_model_info`."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenwire.server import peers
from tokenwire.server.answering import PlainFraming, send_stream, send_whole
from tokenwire.server.body import read_as
from tokenwire.server.context import generate_of, server_of
from tokenwire.server.headers import request_context
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec
from tokenwire.service.answers import all_of
from tokenwire.service.generate import GenerateService, PreparedGenerate
from tokenwire.service.sglang import StreamShaper, replies_of, to_generate_requests
from tokenwire.wire.sglang import SGLangAbort, SGLangRequest


class SGLangGenerate:
    """An ASGI callable. Every refusal comes before the first byte, as an error body of ours."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = server_of(scope)
        service = generate_of(server)
        request, unknown = await read_as(SGLangRequest, scope, receive, server.settings.network.max_body_bytes)
        rid = request.rid if isinstance(request.rid, str) else uuid.uuid4().hex
        context = dataclasses.replace(request_context(scope, "json"), binary=True, request_id_header=None)
        for field in ("data_parallel_rank", "routed_dp_rank"):
            rank = getattr(request, field)
            if rank is not None:
                context = dataclasses.replace(context, data_parallel_rank=rank, rank_field=field)
        if request.session_id is not None:
            context = dataclasses.replace(context, session_id=request.session_id)
        asked = to_generate_requests(request, rid, text=service.text is not None)
        if len(asked) > 1:
            service.check_room(sum(one.sampling_params.n for one in asked))
        prepared = [await service.prepare(one, context, unknown, alone=False) for one in asked]
        service.hold(prepared)
        if request.stream:
            name = prepared[0].request_id
            events = _events(service, request, prepared[0])
            await send_stream(server, events, PlainFraming("json"), receive, send, name=name)
        else:
            await send_whole(_replies(service, request, prepared), "json", receive, send)


async def _replies(service: GenerateService, request: SGLangRequest, prepared: list[PreparedGenerate]) -> Any:
    """A list for a batch or several choices, else the one reply."""
    started = time.monotonic()
    responses = await all_of([service.full(one) for one in prepared])
    replies: list[dict[str, Any]] = []
    for one, response in zip(prepared, responses, strict=True):
        replies += replies_of(request, one, response)
    for reply in replies:
        reply["meta_info"]["e2e_latency"] = time.monotonic() - started
    if len(replies) > 1 or isinstance(request.input_ids[0], list):
        return replies
    del replies[0]["index"]
    return replies[0]


async def _events(
    service: GenerateService, request: SGLangRequest, prepared: PreparedGenerate
) -> AsyncGenerator[list[dict[str, Any]], None]:
    shaper = StreamShaper(request, prepared)
    async with aclosing(service.stream(prepared)) as batches:
        async for chunks in batches:
            events = [event for chunk in chunks for event in shaper.events(chunk)]
            if events:
                yield events


async def abort_request(request: Request) -> Response:
    """Ends the request of that rid, or of a batch that was made from it; unknown rids are no error."""
    server = server_of(request.scope)
    body, _ = await read_as(SGLangAbort, request.scope, request.receive, server.settings.network.max_body_bytes)
    if body.abort_all:
        await peers.abort_all(server)
    elif body.rid:
        await peers.abort_batch(server, body.rid)
    return Response()


async def get_model_info(request: Request) -> Response:
    server = server_of(request.scope)
    return WireResponse(
        {
            "model_path": server.models.root,
            "tokenizer_path": server.settings.model.tokenizer or server.models.root,
            "is_generation": True,
        }
    )


ROUTES = [
    RouteSpec(
        path="/generate",
        endpoint=SGLangGenerate(),
        summary="SGLang's native generation: input_ids in, output_ids and meta_info out.",
        methods=("POST",),
        request=SGLangRequest,
        tag="sglang",
        streams=True,
        needs_engine=True,
        generates=True,
    ),
    RouteSpec(
        path="/abort_request",
        endpoint=abort_request,
        summary="SGLang's abort, by rid.",
        methods=("POST",),
        request=SGLangAbort,
        tag="sglang",
        needs_engine=True,
        control=True,
    ),
    RouteSpec(path="/get_model_info", endpoint=get_model_info, summary="SGLang's model facts.", tag="sglang"),
]
