"""Recorded bodies of the render and tokenize routes: status, error type and param.

Messages of shape errors are our own words; of rules, upstream's.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.render.cases import Record, read
from tests.support.render import render_service
from tests.support.tokenizers import DATA
from tokenwire.errors import TokenwireError
from tokenwire.server.errors import error_body
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.codec import decode
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.render import DetokenizeRequest, TokenizeRequest

ROUTES: dict[str, tuple[str, Any]] = {
    "/v1/chat/completions/render": ("chat", ChatCompletionRequest),
    "/v1/completions/render": ("completion", CompletionRequest),
    "/tokenize": ("tokenize", TokenizeRequest),
    "/detokenize": ("detokenize", DetokenizeRequest),
}
PARAMS = {
    "bad_render_n_zero": ("n", "the recorded server names no field here"),
    "bad_render_role_missing": ("body.messages.0.role", "one path instead of one for each of eleven message types"),
}
RECORDS = read(DATA / "render" / "http.jsonl")


async def _answer(record: Record) -> tuple[int, Any]:
    method, kind = ROUTES[record["path"]]
    try:
        request, _ = decode(kind, json.dumps(record["request"]).encode())
        reply = await getattr(render_service("smol"), method)(request)
    except TokenwireError as error:
        body = error_body(error)
        return body.error.code, msgspec.to_builtins(body)
    return 200, msgspec.to_builtins(reply, str_keys=True)


@pytest.mark.parametrize("record", RECORDS, ids=[record["id"] for record in RECORDS])
async def test_a_recorded_body_gets_the_recorded_status_and_error(record: Record) -> None:
    status, body = await _answer(record)
    assert status == record["status"]
    recorded = record["response"]
    if status != 200:
        error = body["error"]
        assert error["type"] == recorded["error"]["type"]
        assert error["param"] == PARAMS.get(record["id"], (recorded["error"]["param"], ""))[0]
        if error["type"] != "Bad Request":
            assert error["message"] == recorded["error"]["message"]
    elif record["path"].endswith("/render"):
        replies, expected = (body, recorded) if isinstance(body, list) else ([body], [recorded])
        assert [r["token_ids"] for r in replies] == [r["token_ids"] for r in expected]
        endings = [r["request_id"].partition("<id>")[2] for r in expected]
        for reply, rest, ending in zip(replies, expected, endings, strict=True):
            assert reply["request_id"].startswith(rest["request_id"].partition("<id>")[0])
            assert reply["request_id"].endswith(ending)
    else:
        assert body == recorded
