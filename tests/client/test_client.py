"""The client against a server of the protocol, in memory and on a socket.

1. A whole reply is typed by its output_mode; unknown fields in replies are tolerated, missing ones have defaults.
2. Ids are lists and scores are the same arrays, whatever the wire and the logprob format; packed ones are views.
3. A stream gives the chunks in order, at every level, on both wires; its usage chunk comes last.
4. An error event raises its typed error after the chunks before it; a stream that just ends raises too.
5. Leaving a stream early closes the connection, and the server notices.
6. Requests carry what was given: typed, rendered or plain, fields over it, sampling key by key; slips are TypeErrors.
7. The other endpoints are read into their types.
8. Importing the client is fast and loads neither numpy nor anything heavy.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.scripted_app import AB, ToyServer, encode
from tokenwire.client import (
    AsyncClient,
    BadReplyError,
    Client,
    ConnectionLostError,
    DerenderChoice,
    GenerateRequest,
    Rendered,
    ReplyError,
    SamplingParams,
    StreamTruncatedError,
    TextChoice,
    TokensChoice,
)
from tokenwire.errors import GenerationError, TokenwireError


@pytest.fixture(params=["json", "msgpack"])
def either(request: pytest.FixtureRequest, client: AsyncClient, binary_client: AsyncClient) -> AsyncClient:
    return client if request.param == "json" else binary_client


# --- whole replies ------------------------------------------------------------------------------------------------


async def test_ids_go_in_and_ids_come_out(either: AsyncClient) -> None:
    reply = await either.generate([1, 2, 3], SamplingParams(max_tokens=3), return_token_ids=True, request_id="q")
    assert reply.token_ids == [4, 5, 6]
    assert reply.prompt_token_ids == [1, 2, 3]
    assert reply.request_id == "generate-tokens-q"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 3)
    assert reply.choices[0].finish_reason == "stop"


async def test_choices_are_typed_by_the_output_mode(either: AsyncClient) -> None:
    tokens = await either.generate([64], {"max_tokens": 2})
    text = await either.generate([64], {"max_tokens": 2}, output_mode="text")
    message = await either.generate([64], {"max_tokens": 2}, output_mode="derender")
    assert type(tokens.choices[0]) is TokensChoice
    assert type(text.choices[0]) is TextChoice
    assert text.text == "AB"
    assert type(message.choices[0]) is DerenderChoice
    assert message.message.content == "AB"
    with pytest.raises(BadReplyError, match='output_mode "tokens" has no text'):
        _ = tokens.text
    with pytest.raises(BadReplyError, match='output_mode "text" has no message'):
        _ = text.message


@pytest.mark.parametrize("logprobs_format", ["content", "packed"])
async def test_scores_are_the_same_arrays_in_every_format(either: AsyncClient, logprobs_format: str) -> None:
    reply = await either.generate([1], {"max_tokens": 3, "logprobs": 1}, logprobs_format=logprobs_format)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs) == 3
    arrays = logprobs.arrays()
    np.testing.assert_array_equal(arrays.token_ids, [[2], [3], [4]])
    np.testing.assert_allclose(arrays.sampled, [-0.5, -1.5, -2.5])
    np.testing.assert_array_equal(arrays.ranks, [1, 1, 1])


async def test_packed_scores_are_views_of_the_reply(either: AsyncClient) -> None:
    reply = await either.generate([1], {"max_tokens": 3, "logprobs": 0}, logprobs_format="packed")
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    arrays = logprobs.arrays()
    for array, raw in ((arrays.logprobs, logprobs.logprobs), (arrays.token_ids, logprobs.token_ids)):
        assert not array.flags.owndata
        assert np.shares_memory(array, np.frombuffer(raw, array.dtype))


def reply_of(content: bytes, content_type: str = "application/json") -> Client:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=content, headers={"content-type": content_type})

    return Client("http://x", transport=httpx.MockTransport(answer))


def test_unknown_fields_in_replies_are_tolerated_and_missing_ones_have_defaults() -> None:
    body = b"""{"request_id": "r", "novel": {"a": [1]}, "choices": [{"token_ids": [5], "novel": 1, "logprobs":
        {"content": [{"token": "token_id:5", "logprob": -1, "novel": 0, "top_logprobs": []}]}}]}"""
    reply = reply_of(body).generate([1])
    assert reply.output_mode == "tokens"
    assert (reply.model, reply.usage, reply.choices[0].finish_reason) == (None, None, None)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.arrays().token_ids.tolist() == [[5]]


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"[]", b'{"request_id": "r"}', b'{"request_id": 1, "choices": []}', b"\xff\xfe", b'{"a": "\xff"}'],
)
def test_a_reply_that_is_not_the_protocols_is_said_to_be_so(content: bytes) -> None:
    with pytest.raises(BadReplyError, match="POST /inference/v1/generate"):
        reply_of(content).generate([1])


@pytest.mark.parametrize("content", [b"", b"\xc1", msgspec.msgpack.encode([]), msgspec.msgpack.encode({"choices": 1})])
def test_a_broken_messagepack_reply_is_said_to_be_so(content: bytes) -> None:
    with pytest.raises(BadReplyError):
        reply_of(content, "application/msgpack").generate([1])


def test_packed_arrays_that_do_not_fit_together_are_refused() -> None:
    body = {"request_id": "r", "choices": [{"logprobs": {"format": "packed", "k": 2, "ranks": bytes(4)}}]}
    reply = reply_of(msgspec.json.encode(body)).generate([1])
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    with pytest.raises(BadReplyError, match=r"1 ranks, k=2, 0 bytes of token_ids and 0 of logprobs \(want 8\)"):
        logprobs.arrays()


@pytest.mark.parametrize("as_object", [False, True])
def test_routed_experts_are_read_from_both_formats(as_object: bool, tmp_path: object) -> None:
    import io

    array = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    buffer = io.BytesIO()
    np.save(buffer, array)
    experts = {"data": array.tobytes(), "shape": [3, 2, 2], "start": 0, "dtype": "uint8"}
    body = {"request_id": "r", "choices": [{"routed_experts": experts if as_object else buffer.getvalue()}]}
    for content, content_type in (
        (msgspec.json.encode(body), "application/json"),
        (msgspec.msgpack.encode(body), "application/msgpack"),
    ):
        found = reply_of(content, content_type).generate([1]).choices[0].routed_experts_array()
        np.testing.assert_array_equal(found, array)


_json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=4) | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["request_id", "choices", "output_mode", "token_ids", "error"]), inner)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=40) | st.builds(msgspec.msgpack.encode, _json_like))
def test_no_messagepack_reply_or_frame_raises_anything_but_our_errors(content: bytes) -> None:
    with contextlib.suppress(TokenwireError):
        reply_of(content, "application/msgpack").generate([1])
    with contextlib.suppress(TokenwireError):
        list(reply_of(len(content).to_bytes(4, "little") + content, "application/msgpack").generate_stream([1]))


@given(st.binary(max_size=40) | st.builds(msgspec.json.encode, _json_like))
def test_no_json_reply_or_event_raises_anything_but_our_errors(content: bytes) -> None:
    with contextlib.suppress(TokenwireError):
        reply_of(content).generate([1])
    with contextlib.suppress(TokenwireError):
        list(reply_of(b"data: " + content + b"\n\n", "text/event-stream").generate_stream([1]))


# --- streams ------------------------------------------------------------------------------------------------------


async def test_a_stream_gives_its_chunks_in_order(either: AsyncClient) -> None:
    async with either.generate_stream([10], {"max_tokens": 4, "logprobs": 0}, logprobs_format="packed") as stream:
        chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].token_ids for chunk in chunks] == [[11], [12], [13], [14]]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    scores = [chunk.choices[0].logprobs for chunk in chunks]
    assert [float(s.sampled()[0]) for s in scores if s is not None] == [-0.5, -1.5, -2.5, -3.5]
    assert stream.request_id == "r"


async def test_a_stream_is_typed_at_every_level(either: AsyncClient) -> None:
    text = [c async for c in either.generate_stream([64], {"max_tokens": 2}, output_mode="text")]
    deltas = [c async for c in either.generate_stream([64], {"max_tokens": 2}, output_mode="derender")]
    assert [c.choices[0].text for c in text] == ["A", "B"]  # type: ignore[attr-defined]
    assert [c.choices[0].delta.content for c in deltas] == ["A", "B"]  # type: ignore[attr-defined]


async def test_the_usage_chunk_comes_last_and_has_no_choices(either: AsyncClient) -> None:
    stream = either.generate_stream([1], {"max_tokens": 2}, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert [len(chunk.choices) for chunk in chunks] == [1, 1, 0]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


async def test_an_error_event_raises_after_the_chunks_before_it(either: AsyncClient, toy: ToyServer) -> None:
    toy.fail_after = 2
    stream = either.generate_stream([1], {"max_tokens": 9})
    assert (await anext(stream)).choices[0].token_ids == [2]
    assert (await anext(stream)).choices[0].token_ids == [3]
    with pytest.raises(GenerationError, match="engine broke") as caught:
        await anext(stream)
    assert isinstance(caught.value, ReplyError)
    assert caught.value.status == 500


@pytest.mark.parametrize(
    "content, error",
    [
        (b'data: {"request_id":"r","choices":[{"token_ids":[1]}]}\n\n', StreamTruncatedError),
        (b"", StreamTruncatedError),
        (b"data: {}\n\ndata: [DONE]\n\n", BadReplyError),
        (b"data: nonsense\n\ndata: [DONE]\n\n", BadReplyError),
        (b'event: error\ndata: {"object":"x","error":{"message":"m","code":500}}\n\n', GenerationError),
    ],
)
def test_a_stream_that_breaks_the_protocol_raises(content: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        list(reply_of(content, "text/event-stream; charset=utf-8").generate_stream([1]))


def test_a_whole_reply_where_a_stream_was_asked_for_is_said_to_be_so() -> None:
    with pytest.raises(BadReplyError, match="answered with application/json where a stream was asked for"):
        list(reply_of(b"{}").generate_stream([1]))


def test_a_frame_stream_cut_off_inside_a_frame_raises() -> None:
    with pytest.raises(StreamTruncatedError):
        list(reply_of(b"\x05\x00\x00\x00ab", "application/msgpack").generate_stream([1]))


def test_on_a_socket_chunks_arrive_as_they_are_made(sync_client: Client, toy: ToyServer) -> None:
    toy.step_s = 0.2
    stream = sync_client.generate_stream([1], {"max_tokens": 3})
    began = time.perf_counter()
    next(stream)
    first_s = time.perf_counter() - began
    assert [chunk.choices[0].token_ids for chunk in stream] == [[3], [4]]
    assert time.perf_counter() - began > first_s + 0.3


def test_leaving_a_stream_early_stops_the_server(sync_client: Client, toy: ToyServer) -> None:
    toy.step_s = 0.01
    with sync_client.generate_stream([1], {"max_tokens": 10_000}) as stream:
        next(stream)
    assert list(stream) == []
    assert toy.stream_closed.wait(5)
    assert toy.closed_streams == 1


async def test_an_async_stream_left_early_stops_the_server(base_url: str, toy: ToyServer) -> None:
    import asyncio

    toy.step_s = 0.01
    async with AsyncClient(base_url) as client:
        async with client.generate_stream([1], {"max_tokens": 10_000}) as stream:
            await anext(stream)
        assert [chunk async for chunk in stream] == []
        await asyncio.wait_for(asyncio.to_thread(toy.stream_closed.wait), 5)
    assert toy.closed_streams == 1


async def test_two_hundred_streams_at_once_each_get_their_own_ids(base_url: str) -> None:
    import asyncio

    async def one(client: AsyncClient, first: int) -> list[int]:
        ids: list[int] = []
        async for chunk in client.generate_stream([first], {"max_tokens": 5}):
            ids += chunk.choices[0].token_ids or []
        return ids

    async with AsyncClient(base_url) as client:
        found = await asyncio.gather(*(one(client, i) for i in range(200)))
    assert found == [[(i + 1 + j) % 256 for j in range(5)] for i in range(200)]


def test_a_connection_that_breaks_in_the_middle_is_a_lost_connection() -> None:
    class Broken(httpx.SyncByteStream):
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield b'data: {"request_id":"r","choices":[{"token_ids":[1]}]}\n\n'
            raise httpx.RemoteProtocolError("peer closed connection")

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Broken(), headers={"content-type": "text/event-stream"})

    stream = Client("http://x", transport=httpx.MockTransport(answer)).generate_stream([1])
    assert next(stream).choices[0].token_ids == [1]
    with pytest.raises(ConnectionLostError, match="peer closed connection"):
        next(stream)


# --- requests -----------------------------------------------------------------------------------------------------


async def test_sampling_parameters_go_over_those_of_the_request_key_by_key(client: AsyncClient, toy: ToyServer) -> None:
    request = GenerateRequest(token_ids=[1], sampling_params=SamplingParams(max_tokens=2, seed=7), cache_salt="s")
    await client.generate(request, {"seed": None, "top_k": 5}, priority=3)
    body = toy.requests[-1][2]
    assert body["sampling_params"] == {"max_tokens": 2, "seed": None, "top_k": 5}
    assert (body["cache_salt"], body["priority"], body["stream"]) == ("s", 3, False)


async def test_fields_of_a_rendered_prompt_travel_as_they_are(client: AsyncClient, toy: ToyServer) -> None:
    toy.failures = [httpx_json({"novel": 1})]
    rendered = Rendered(
        {"token_ids": [1], "sampling_params": {"max_tokens": 1}, "novel_field": {"x": 1}, "stream": True}
    )
    with pytest.raises(BadReplyError):
        await client.generate(rendered)
    body = toy.requests[-1][2]
    assert body["novel_field"] == {"x": 1}
    assert body["stream"] is False


def httpx_json(body: object):  # type: ignore[no-untyped-def]
    from starlette.responses import JSONResponse

    return JSONResponse(body)


async def test_a_misspelt_field_is_a_type_error_before_anything_is_sent(client: AsyncClient, toy: ToyServer) -> None:
    with pytest.raises(TypeError, match="no field 'output_mod'"):
        await client.generate([1], output_mod="text")
    assert toy.requests == []


@pytest.mark.parametrize("text", ["hello", "12", b"12"])
async def test_text_instead_of_ids_is_a_type_error(client: AsyncClient, text: Any) -> None:
    with pytest.raises(TypeError, match="takes token ids, not text"):
        await client.generate(text)


@pytest.mark.parametrize("ids", [None, [], "x", [1.5], ["1"], [-1], [True], {}])
def test_a_rendered_prompt_without_ids_is_refused(ids: Any) -> None:
    with pytest.raises(BadReplyError, match="must have token_ids"):
        Rendered({"token_ids": ids})


async def test_headers_of_one_request_and_of_all(toy: ToyServer) -> None:
    transport = httpx.ASGITransport(toy.app)
    async with AsyncClient("http://toy", api_key="k", headers={"X-Session-ID": "s"}, transport=transport) as client:
        await client.generate([1], {"max_tokens": 1}, headers={"X-Request-Id": "mine"})
    sent = toy.requests[-1][1]
    assert (sent["authorization"], sent["x-session-id"], sent["x-request-id"]) == ("Bearer k", "s", "mine")


@pytest.mark.parametrize("wire", ["json", "msgpack"])
async def test_numpy_ids_are_taken(toy: ToyServer, wire: str) -> None:
    async with AsyncClient("http://toy", wire=wire, transport=httpx.ASGITransport(toy.app)) as client:  # type: ignore[arg-type]
        assert (await client.generate(np.array([1, 2]), {"max_tokens": 1})).token_ids == [3]  # type: ignore[arg-type]


# --- the other endpoints ------------------------------------------------------------------------------------------


def test_the_other_endpoints_are_read_into_their_types(sync_client: Client, toy: ToyServer) -> None:
    sync_client.health()
    assert [(card.id, card.max_model_len) for card in sync_client.models()] == [("toy", 99)]
    assert sync_client.tokenize("xab").tokens == [ord("x"), AB]
    assert sync_client.tokenize([{"role": "user", "content": "x"}], add_generation_prompt=True).count == 4
    assert sync_client.detokenize([ord("x"), AB]) == "xab"
    aborted = sync_client.abort(["a", "b"])
    assert (aborted.aborted, aborted.unknown) == (["a"], ["b"])
    assert sync_client.abort("a").aborted == ["a"]
    assert [r.token_ids for r in sync_client.render_completion(["x", "ab"])] == [[ord("x")], [AB]]
    rendered = sync_client.render_chat([{"role": "user", "content": "hi"}], tools=[])
    assert rendered.token_ids[1:3] == encode("hi")
    assert rendered.sampling_params["max_tokens"] == 100
    body = {"generate_response": {"choices": [{"token_ids": [65]}]}}
    message = sync_client.derender_chat(body).choices[0].message
    assert message is not None
    assert message.content == "A"


def test_an_abort_that_answers_nothing_is_an_answer() -> None:
    assert reply_of(b"").abort("x").aborted is None


# --- weight -------------------------------------------------------------------------------------------------------


def test_importing_the_client_is_fast_and_light() -> None:
    program = """
import sys, time
began = time.process_time()  # a busy machine must not count
import tokenwire.client
spent = time.process_time() - began
heavy = {"numpy", "torch", "transformers", "starlette", "tokenizers"} & set(sys.modules)
print(spent, sorted(heavy))
from tokenwire.client import Conversation
print(sorted({"torch", "transformers", "starlette", "tokenizers"} & set(sys.modules)))
"""
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    firsts = [run.stdout.splitlines()[0].split(" ", 1) for run in runs]
    assert min(float(spent) for spent, _ in firsts) < 0.3
    assert all(heavy == "[]" for _, heavy in firsts)
    assert all(run.stdout.splitlines()[1] == "[]" for run in runs)
