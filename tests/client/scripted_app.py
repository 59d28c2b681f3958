"""A small server of the protocol for client tests: a byte tokenizer, a scripted model, replies in the wire's own types.

Ids below 256 are bytes, 300 is the pair "ab" (so one text has two spellings), the rest are markers. The model says
what `ToyServer.script` says next, else it counts on from the last prompt id.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tokenwire.wire import codec
from tokenwire.wire.generate import (
    DeltaMessage,
    DerenderChoice,
    DerenderDeltaChoice,
    FunctionCall,
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    Message,
    PackedLogprobs,
    TextChoice,
    TokenIdLogprob,
    TokenIdLogprobEntry,
    TokenIdLogprobs,
    TokensChoice,
    ToolCall,
    UsageChunk,
    WeightVersionSpan,
)
from tokenwire.wire.usage import UsageInfo

AB = 300
END = 260
ROLES = {"system": 256, "user": 257, "assistant": 258, "tool": 259}


def encode(text: str) -> list[int]:
    ids: list[int] = []
    for byte in text.encode():
        if ids and ids[-1] == ord("a") and byte == ord("b"):
            ids[-1] = AB
        else:
            ids.append(byte)
    return ids


def decode(ids: list[int]) -> str:
    return b"".join(b"ab" if i == AB else bytes([i]) for i in ids if i < 256 or i == AB).decode("utf-8", "replace")


def render(messages: list[dict[str, Any]]) -> list[int]:
    """Every message is its role's marker, its text, and END; then the marker that asks for an answer."""
    ids: list[int] = []
    for message in messages:
        ids += [ROLES[message["role"]], *encode(spoken(message)), END]
    return [*ids, ROLES["assistant"]]


def spoken(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls") or []
    return (message.get("content") or "") + "".join(
        f"CALL {call['function']['name']} {call['function']['arguments']}" for call in calls
    )


def parse(text: str, *, call_id: str) -> Message:
    content, marker, call = text.partition("CALL ")
    if not marker:
        return Message(content=text)
    name, _, arguments = call.partition(" ")
    function = FunctionCall(name=name, arguments=arguments)
    return Message(content=content or None, tool_calls=[ToolCall(id=call_id, function=function)])


def error(
    status: int, message: str, kind: str = "BadRequestError", param: str | None = None, **headers: str
) -> Response:
    body = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    return JSONResponse(body, status, headers={name.replace("_", "-"): value for name, value in headers.items()})


class ToyServer:
    """Set the attributes, then speak to `app`. Everything received is in `requests`."""

    def __init__(self) -> None:
        self.script: list[list[int]] = []
        self.failures: list[Response] = []
        self.fail_after: int | None = None
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.knows_prefix = True
        self.knows_derender_mode = True
        self.step_s = 0.0
        self.closed_streams = 0
        self.stream_closed = threading.Event()
        self.answered = 0
        self.app = Starlette(
            routes=[
                Route("/inference/v1/generate", self.generate, methods=["POST"]),
                Route("/inference/v1/abort_requests", self.abort, methods=["POST"]),
                Route("/v1/chat/completions/render", self.render_chat, methods=["POST"]),
                Route("/v1/completions/render", self.render_completion, methods=["POST"]),
                Route("/v1/chat/completions/derender", self.derender, methods=["POST"]),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/health", self.health),
            ]
        )

    async def _body(self, request: Request) -> dict[str, Any]:
        raw = await request.body()
        binary = "msgpack" in request.headers["content-type"]
        body: dict[str, Any] = msgspec.msgpack.decode(raw) if binary else json.loads(raw)
        self.requests.append((request.url.path, dict(request.headers), body))
        return body

    # --- generate -----------------------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Response:
        body = await self._body(request)
        if self.failures:
            return self.failures.pop(0)
        wanted, _ = codec.convert(GenerateRequest, body)
        if wanted.output_mode == "derender" and not self.knows_derender_mode:
            wanted = msgspec.structs.replace(wanted, output_mode="tokens")
        binary = "msgpack" in request.headers.get("accept", "")
        ids = self._sample(wanted)
        if wanted.stream:
            media_type = "application/msgpack" if binary else "text/event-stream"
            return StreamingResponse(self._stream(wanted, ids, binary), media_type=media_type)
        reply = GenerateResponse(
            request_id=f"generate-tokens-{wanted.request_id or 'x'}",
            model="toy",
            created=1,
            usage=UsageInfo(
                prompt_tokens=len(wanted.token_ids),
                completion_tokens=len(ids),
                total_tokens=len(wanted.token_ids) + len(ids),
            ),
            prompt_token_ids=_ids(wanted.token_ids, binary) if wanted.return_token_ids else None,
            output_mode=wanted.output_mode,
            choices=[self._choice(wanted, ids, 0, binary, finish="stop", delta=False)],
        )
        content = codec.encode(reply, "msgpack" if binary else "json")
        return Response(content, media_type="application/msgpack" if binary else "application/json")

    def _sample(self, wanted: GenerateRequest) -> list[int]:
        if self.script:
            return self.script.pop(0)
        limit = wanted.sampling_params.max_tokens
        count = limit if isinstance(limit, int) else 4
        return [(wanted.token_ids[-1] + 1 + i) % 256 for i in range(count)]

    def _choice(
        self, wanted: GenerateRequest, ids: list[int], at: int, binary: bool, *, finish: str | None, delta: bool
    ) -> TokensChoice:
        common: dict[str, Any] = {"index": 0, "finish_reason": finish, "token_ids": _ids(ids, binary)}
        if wanted.sampling_params.logprobs is not None:
            common["logprobs"] = _logprobs(wanted, ids, at, binary)
        if finish:
            self.answered += 1
            common["weight_versions"] = [WeightVersionSpan(f"w{self.answered}", 0, at + len(ids))]
        if wanted.output_mode == "text":
            return TextChoice(text=decode(ids), **common)
        if wanted.output_mode == "derender" and delta:
            return DerenderDeltaChoice(delta=DeltaMessage(content=decode(ids)), **common)
        if wanted.output_mode == "derender":
            return DerenderChoice(message=parse(decode(ids), call_id=f"call-{self.answered}"), **common)
        return TokensChoice(**common)

    async def _stream(self, wanted: GenerateRequest, ids: list[int], binary: bool) -> AsyncIterator[bytes]:
        done = False
        try:
            for at, token_id in enumerate(ids):
                if at == self.fail_after:
                    yield _event(
                        {"error": {"message": "engine broke", "type": "InternalServerError", "code": 500}}, binary
                    )
                    break
                finish = "stop" if at == len(ids) - 1 else None
                choice = self._choice(wanted, [token_id], at, binary, finish=finish, delta=True)
                yield _event(GenerateChunk(request_id="r", output_mode=wanted.output_mode, choices=[choice]), binary)
                await asyncio.sleep(self.step_s)
            if wanted.stream_options is not None and wanted.stream_options.include_usage:
                usage = UsageInfo(prompt_tokens=1, completion_tokens=len(ids), total_tokens=1 + len(ids))
                yield _event(
                    UsageChunk(request_id="r", usage=usage, output_mode=wanted.output_mode, choices=[]), binary
                )
            yield _event("[DONE]", True) if binary else b"data: [DONE]\n\n"
            done = True
        finally:
            if not done:
                self.closed_streams += 1
                self.stream_closed.set()

    async def abort(self, request: Request) -> Response:
        body = await self._body(request)
        return JSONResponse({"aborted": body["request_ids"][:1], "unknown": body["request_ids"][1:], "later": 1})

    # --- messages and text --------------------------------------------------------------------------------------

    async def render_chat(self, request: Request) -> Response:
        body = await self._body(request)
        if self.failures:
            return self.failures.pop(0)
        messages, prefix = body["messages"], body.get("prefix_token_ids")
        ids = render(messages)
        if prefix and self.knows_prefix:
            closed = prefix if prefix[-1] == END else [*prefix, END]
            ids = closed + render(messages[body["prefix_message_count"] :])
        sampling = {"max_tokens": 100, "stop": ["\n"]}
        return JSONResponse({"request_id": "chatcmpl-1", "token_ids": ids, "sampling_params": sampling, "model": "toy"})

    async def render_completion(self, request: Request) -> Response:
        body = await self._body(request)
        texts = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
        return JSONResponse([{"token_ids": encode(text), "sampling_params": {}} for text in texts])

    async def derender(self, request: Request) -> Response:
        body = await self._body(request)
        choice = body["generate_response"]["choices"][0]
        message = msgspec.to_builtins(parse(decode(choice["token_ids"]), call_id="d"))
        return JSONResponse({"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        ids = encode(body["prompt"]) if "prompt" in body else render(body["messages"])
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": 99})

    async def detokenize(self, request: Request) -> Response:
        return JSONResponse({"prompt": decode((await self._body(request))["tokens"])})

    async def models(self, request: Request) -> Response:
        card = {"id": "toy", "object": "model", "max_model_len": 99, "permission": [], "root": "toy"}
        return JSONResponse({"object": "list", "data": [card]})

    async def health(self, request: Request) -> Response:
        return self.failures.pop(0) if self.failures else Response()


def _ids(ids: list[int], binary: bool) -> Any:
    return np.array(ids, "<i4") if binary else ids


def _logprobs(wanted: GenerateRequest, ids: list[int], at: int, binary: bool) -> Any:
    scores = [-0.5 - at - i for i in range(len(ids))]
    if wanted.logprobs_format == "content" or (wanted.logprobs_format is None and not binary):
        return TokenIdLogprobs(
            [
                TokenIdLogprobEntry(i, score, 1, [TokenIdLogprob(i, score, 1)])
                for i, score in zip(ids, scores, strict=True)
            ]
        )
    arrays = (np.array([ids]).T.astype("<i4"), np.array([scores]).T.astype("<f4"), np.ones(len(ids), "<i4"))
    raw = [a.tobytes() if binary else base64.b64encode(a.tobytes()).decode() for a in arrays]
    return PackedLogprobs(k=1, token_ids=raw[0], logprobs=raw[1], ranks=raw[2])


def _event(value: object, binary: bool) -> bytes:
    if not binary:
        return b"data: " + codec.encode(value) + b"\n\n"
    payload = codec.encode(value, "msgpack")
    return len(payload).to_bytes(4, "little") + payload
