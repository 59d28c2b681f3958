"""SGLang's native routes, for trainers that speak nothing else: `/generate`, `/abort_request`, `/get_model_info`."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenwire.server.body import read_as
from tokenwire.server.context import Server, generate_of, server_of
from tokenwire.server.disconnect import DisconnectWatch
from tokenwire.server.errors import MEDIA_TYPES, encode_error, log_error, status_of
from tokenwire.server.frames import DONE_FRAMES, STREAM_TYPES, frame_events, frame_payload
from tokenwire.server.headers import request_context
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec
from tokenwire.service.generate import GenerateService, PreparedGenerate
from tokenwire.service.sglang import StreamShaper, replies_of, to_generate_requests
from tokenwire.wire.codec import encode
from tokenwire.wire.generate import GenerateResponse
from tokenwire.wire.sglang import SGLangAbort, SGLangRequest


class SGLangGenerate:
    """An ASGI callable. Every refusal comes before the first byte, as an error body of ours."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = server_of(scope)
        service = generate_of(server)
        request, unknown = await read_as(SGLangRequest, scope, receive, server.settings.network.max_body_bytes)
        rid = request.rid if isinstance(request.rid, str) else uuid.uuid4().hex
        context = dataclasses.replace(request_context(scope, "json"), binary=True, request_id_header=None)
        rank = request.routed_dp_rank if request.routed_dp_rank is not None else request.data_parallel_rank
        if rank is not None:
            context = dataclasses.replace(context, data_parallel_rank=rank)
        if request.session_id is not None:
            context = dataclasses.replace(context, session_id=request.session_id)
        asked = to_generate_requests(request, rid, text=service.text is not None)
        prepared = [await service.prepare(one, context, unknown) for one in asked]
        if request.stream:
            await _stream(server, service, request, prepared[0], receive, send)
        else:
            await _full(service, request, prepared, receive, send)


async def _full(
    service: GenerateService, request: SGLangRequest, prepared: list[PreparedGenerate], receive: Receive, send: Send
) -> None:
    started = time.monotonic()
    replies: list[dict[str, Any]] = []
    async with DisconnectWatch(receive) as watch:
        responses = await _all(service, prepared)
        for one, response in zip(prepared, responses, strict=True):
            replies += replies_of(request, one, response)
    if watch.gone:
        return
    for reply in replies:
        reply["meta_info"]["e2e_latency"] = time.monotonic() - started
    single = len(prepared) == 1 and prepared[0].n == 1 and not isinstance(request.input_ids[0], list)
    if single:
        del replies[0]["index"]
    payload = encode(replies[0] if single else replies)
    headers = [(b"content-type", MEDIA_TYPES["json"]), (b"content-length", str(len(payload)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": payload})


async def _stream(
    server: Server,
    service: GenerateService,
    request: SGLangRequest,
    prepared: PreparedGenerate,
    receive: Receive,
    send: Send,
) -> None:
    headers = [(b"content-type", STREAM_TYPES["json"]), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    tail = DONE_FRAMES["json"]
    async with DisconnectWatch(receive) as watch:
        try:
            shaper = StreamShaper(request, prepared)
            async with aclosing(service.stream(prepared)) as batches:
                async for chunks in batches:
                    events = [event for chunk in chunks for event in shaper.events(chunk)]
                    if events:
                        body = frame_events(events, "json")
                        await send({"type": "http.response.body", "body": body, "more_body": True})
        except Exception as exc:
            log_error(exc, f"stream {prepared.request_id}")
            server.metrics.error(status_of(exc))
            tail = frame_payload(encode_error(exc, "json"), "json") + tail
    if not watch.gone:
        await send({"type": "http.response.body", "body": tail})


async def _all(service: GenerateService, prepared: list[PreparedGenerate]) -> list[GenerateResponse]:
    """All prompts at once. The first failure ends the others and is raised."""
    tasks = [asyncio.ensure_future(service.full(one)) for one in prepared]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def abort_request(request: Request) -> Response:
    """Ends the request of that rid, or of a batch that was made from it; unknown rids are no error."""
    server = server_of(request.scope)
    body, _ = await read_as(SGLangAbort, request.scope, request.receive, server.settings.network.max_body_bytes)
    service = generate_of(server)
    if body.abort_all:
        await service.abort_all()
    elif body.rid:
        await service.abort([body.rid])
        index = 0
        while (await service.abort([f"{body.rid}_{index}"]))[0]:
            index += 1
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
