"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from tokenwire.errors import UnsupportedFeatureError
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.server.body import read_as
from tokenwire.server.context import Server, server_of
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text to ids."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`token_strs` are the vocabulary's own spellings, when asked for."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ids to text, special tokens included. Ids beyond the vocabulary are passed over."""

    tokens: list[Annotated[int, Meta(ge=0)]]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str


def tokenizer_of(server: Server, field: str) -> Tokenizer:
    """Raises `UnsupportedFeatureError` on a server without a tokenizer."""
    if server.tokenizer is None:
        raise UnsupportedFeatureError(
            field,
            value="...",
            where="a server without a tokenizer (--tokens-only, --skip-tokenizer-init)",
            way_out="Ask a server that loads one.",
        )
    return server.tokenizer


async def tokenize(request: Request) -> Response:
    server = server_of(request.scope)
    limit = server.settings.network.max_body_bytes
    body, unknown = await read_as(TokenizeRequest, request.scope, request.receive, limit)
    server.note_unknown(unknown)
    server.models.check(body.model)
    tokenizer = tokenizer_of(server, "prompt")
    tokens = await asyncio.to_thread(tokenizer.encode, body.prompt, add_special_tokens=body.add_special_tokens)
    strings = [tokenizer.id_to_piece(token) or "" for token in tokens] if body.return_token_strs else None
    return WireResponse(
        TokenizeResponse(count=len(tokens), max_model_len=server.max_model_len, tokens=tokens, token_strs=strings)
    )


async def detokenize(request: Request) -> Response:
    server = server_of(request.scope)
    limit = server.settings.network.max_body_bytes
    body, unknown = await read_as(DetokenizeRequest, request.scope, request.receive, limit)
    server.note_unknown(unknown)
    server.models.check(body.model)
    tokenizer = tokenizer_of(server, "tokens")
    known = [token for token in body.tokens if token <= tokenizer.max_token_id]
    return WireResponse(DetokenizeResponse(prompt=await asyncio.to_thread(tokenizer.decode, known)))


ROUTES = [
    RouteSpec(
        path="/tokenize",
        endpoint=tokenize,
        summary="Text to ids.",
        methods=("POST",),
        request=TokenizeRequest,
        response=TokenizeResponse,
        tag="text",
    ),
    RouteSpec(
        path="/detokenize",
        endpoint=detokenize,
        summary="Ids to text.",
        methods=("POST",),
        request=DetokenizeRequest,
        response=DetokenizeResponse,
        tag="text",
    ),
]
