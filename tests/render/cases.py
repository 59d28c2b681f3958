"""Recorded requests and what their answers must hold; shared by the copy in the tree and by the full recordings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.support.render import render_service
from tests.support.tokenizers import DATA, has_tokenizer
from tokenwire.errors import TokenwireError
from tokenwire.server.errors import error_body
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.codec import decode
from tokenwire.wire.completion import DEFAULT_MAX_TOKENS, CompletionRequest
from tokenwire.wire.render import TokenizeRequest

Record = dict[str, Any]

KINDS = {"chat": ChatCompletionRequest, "completion": CompletionRequest, "tokenize": TokenizeRequest}

NEUTRAL = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
    "skip_reading_prefix_cache": False,
    "skip_special_tokens": True,
}
"""The recorded server writes some defaults out, and leaves others away."""


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def full_recordings() -> Iterator[Record]:
    """Records of all tokenizers whose files are at hand (TOKENWIRE_TOKENIZERS)."""
    beside = Path(__file__).parents[3] / "shared" / "conformance"
    file = Path(os.environ.get("TOKENWIRE_CONFORMANCE", beside)) / "render.jsonl"
    if file.is_file():
        yield from (record for record in read(file) if has_tokenizer(record["tokenizer"]))


def in_tree() -> list[Record]:
    return read(DATA / "render" / "smol.jsonl")


async def answer(record: Record) -> tuple[int, Any]:
    """(status, body) as our server gives them, the body as plain data."""
    service = render_service(record["tokenizer"], tuple(record["server_flags"]))
    try:
        request, _ = decode(KINDS[record["kind"]], json.dumps(record["request"]).encode())
        reply = await getattr(service, record["kind"])(request)
    except TokenwireError as error:
        body = error_body(error)
        return body.error.code, msgspec.to_builtins(body)
    return 200, msgspec.to_builtins(reply, str_keys=True)


def sampling(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters without what is neutral, and without the grammar, whose spelling is each server's own."""
    kept = {k: v for k, v in params.items() if k not in NEUTRAL or v not in (NEUTRAL[k], None)}
    if "structured_outputs" in kept:
        given = {k: v for k, v in kept["structured_outputs"].items() if v not in (None, False)}
        kept["structured_outputs"] = given if "structural_tag" not in given else "a structural tag"
    return kept


def recorded_sampling(record: Record, params: dict[str, Any]) -> dict[str, Any]:
    """As `sampling`, with the max_tokens that the recorded server leaves out when it is its default."""
    kept = sampling(params)
    if record["kind"] == "completion":
        kept.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    return kept
