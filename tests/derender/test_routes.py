"""The derender routes of a server, over HTTP.

1. Both paths answer whole replies and stream chunks, told apart by `stream`, as JSON or MessagePack.
2. Errors have the standard body and status; so has a server without a tokenizer.
3. Unknown fields of the request are counted; those of a token server's reply are not.
4. A streamed generate reply goes through chunk by chunk, its closing usage event too.
5. A server without an engine has the routes as well.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.http import GENERATE, app_of, client_of, events_of, settings_of
from tests.support.scripted_engine import ScriptedEngine, logprobs_of, one_sequence
from tests.support.tokenizers import tokenizer
from tokenwire.server.app import create_app
from tokenwire.server.build import build_server

CHAT, COMPLETION = "/v1/chat/completions/derender", "/v1/completions/derender"
SMOL = tokenizer("smol")
HELLO = SMOL.encode("Hello 🫠 there")


def reply(ids: list[int], **fields: Any) -> dict[str, Any]:
    return {"request_id": "r", "choices": [{"index": 0, "token_ids": ids, **fields}]}


async def test_whole_replies_and_chunks_share_a_path() -> None:
    async with client_of(app_of(tokenizer=SMOL)) as client:
        chat = await client.post(CHAT, json={"generate_response": reply(HELLO), "prompt_tokens": 3})
        assert chat.status_code == 200
        assert chat.headers["content-type"] == "application/json"
        assert chat.json()["object"] == "chat.completion"
        assert chat.json()["choices"][0]["message"]["content"] == "Hello 🫠 there"
        assert chat.json()["usage"]["total_tokens"] == 3 + len(HELLO)
        chunk = await client.post(CHAT, json={"stream": True, "generate_chunk": reply(HELLO)})
        assert chunk.json()["chunk"]["object"] == "chat.completion.chunk"
        text = await client.post(COMPLETION, json={"generate_responses": [reply(HELLO)]})
        assert text.json()["choices"][0]["text"] == "Hello 🫠 there"
        piece = await client.post(COMPLETION, json={"stream": True, "generate_chunk": reply(HELLO)})
        assert piece.json()["chunk"]["object"] == "text_completion"


async def test_messagepack_goes_in_and_comes_out() -> None:
    headers = {"content-type": "application/msgpack", "accept": "application/msgpack"}
    async with client_of(app_of(tokenizer=SMOL)) as client:
        body = msgspec.msgpack.encode({"generate_response": reply(HELLO)})
        answer = await client.post(CHAT, content=body, headers=headers)
    assert answer.headers["content-type"] == "application/msgpack"
    assert msgspec.msgpack.decode(answer.content)["choices"][0]["message"]["content"] == "Hello 🫠 there"


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_a_messagepack_reply_goes_into_derender_as_it_came(path: str) -> None:
    masks = [np.arange(i, i + 1 + i % 3, dtype=np.int32) for i in range(len(HELLO))]
    scores = logprobs_of([[(i, -0.5), (i, -0.5), (i + 1, -1.5)] for i in HELLO])
    engine = ScriptedEngine(one_sequence(HELLO, step_size=len(HELLO), logprobs=scores, sampling_mask=masks))
    asked = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 9, "logprobs": 2}, "return_token_ids": True}
    original = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 2}
    name, asks = ("chat_request", original) if path == CHAT else ("completion_request", {"prompt": "hi", "logprobs": 2})
    said = []
    async with client_of(app_of(engine, tokenizer=SMOL)) as client:
        for media_type, codec in (("application/json", msgspec.json), ("application/msgpack", msgspec.msgpack)):
            headers = {"content-type": media_type}
            tokens = codec.decode((await client.post(GENERATE, content=codec.encode(asked), headers=headers)).content)
            given = {"generate_response": tokens} if path == CHAT else {"generate_responses": [tokens]}
            body = codec.encode({**given, name: asks})
            answer = await client.post(path, content=body, headers=headers | {"accept": "application/json"})
            assert answer.status_code == 200, answer.text
            said.append({**answer.json(), "created": 0, "id": ""})
    assert said[0] == said[1]
    assert said[0]["choices"][0]["sampling_mask"] == [mask.tolist() for mask in masks]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (CHAT, {}, 400, "Bad Request"),
        (CHAT, {"generate_response": reply([])}, 400, "BadRequestError"),
        (CHAT, {"model": "nope", "generate_response": reply(HELLO)}, 404, "NotFoundError"),
        (COMPLETION, {"generate_responses": []}, 400, "BadRequestError"),
        (
            CHAT,
            {"stream": True, "generate_chunk": reply(HELLO), "stream_state": {"tokenwire": {"version": 9}}},
            400,
            "BadRequestError",
        ),
    ],
)
async def test_errors_have_the_standard_body(path: str, body: dict[str, Any], status: int, kind: str) -> None:
    async with client_of(app_of(tokenizer=SMOL)) as client:
        answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (status, status, kind)


async def test_a_server_without_a_tokenizer_says_so() -> None:
    async with client_of(app_of(tokens_only=True)) as client:
        answer = await client.post(CHAT, json={"generate_response": reply(HELLO)})
    assert answer.status_code == 400
    assert "without a tokenizer" in answer.json()["error"]["message"]


async def test_unknown_fields_are_noted_but_not_those_of_a_reply() -> None:
    app = app_of(tokenizer=SMOL, strict_fields=True)
    async with client_of(app) as client:
        passed = await client.post(CHAT, json={"generate_response": {**reply(HELLO), "news": 1}})
        refused = await client.post(CHAT, json={"generate_response": reply(HELLO), "news": 1})
    assert passed.status_code == 200
    assert refused.status_code == 400
    assert "news" in refused.json()["error"]["message"]


async def test_a_generate_stream_goes_through_event_by_event() -> None:
    engine = ScriptedEngine(one_sequence(HELLO, finish_reason="length"))
    async with client_of(app_of(engine, tokenizer=SMOL)) as client:
        request = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 20}, "stream": True}
        request["stream_options"] = {"include_usage": True}
        events = events_of((await client.post(GENERATE, json=request)).text)
        state, text, usage = None, "", None
        for event in events:
            body = {"stream": True, "generate_chunk": event, "stream_state": state, "prompt_token_ids": [1, 2]}
            answer = (await client.post(CHAT, json=body)).json()
            state, usage = answer["stream_state"], answer["chunk"]["usage"]
            text += "".join(choice["delta"]["content"] or "" for choice in answer["chunk"]["choices"])
    assert text == "Hello 🫠 there"
    assert usage["completion_tokens"] == len(HELLO)


async def test_a_front_end_without_an_engine_derenders() -> None:
    app = create_app(build_server(settings_of(), None, tokenizer=SMOL))
    async with client_of(app) as client:
        answer = await client.post(CHAT, json={"generate_response": reply(HELLO)})
    assert answer.status_code == 200
