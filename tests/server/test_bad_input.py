"""Bad input is refused with the standard error body, a sentence that names the field, and no work done: (1) bodies
that are no JSON; (2) wrong types; (3) values out of range; (4) rules between fields; (5) media types; (6) sizes, also
where Content-Length lies; (7) nesting; (8) too much in flight; (9) unknown paths and methods."""

import asyncio
import json

import pytest

from tests.support.http import GENERATE, RawClient, app_of, body, client_of, serving, until
from tests.support.scripted_engine import ScriptedEngine

JSON = {"Content-Type": "application/json"}


def with_sampling(**sampling):
    return json.dumps(body(**sampling))


def with_fields(**fields):
    return json.dumps({**body(max_tokens=1), **fields})


CASES = {
    "malformed JSON": ("{not json", 400, "body", "JSON"),
    "cut-off JSON": ('{"token_ids": [1', 400, "body", "JSON"),
    "no UTF-8": (b'{"model": "\xff\xfe"}', 400, "body", None),
    "an empty body": ("", 400, "body", "empty"),
    "a string": ('"x"', 400, "body", None),
    "null": ("null", 400, "body", None),
    "a list": ("[]", 400, "body", None),
    "no sampling_params": ('{"token_ids": [1]}', 400, "body.sampling_params", "required"),
    "no token_ids": ('{"sampling_params": {}}', 400, "body.token_ids", "required"),
    "empty token_ids": (with_fields(token_ids=[]), 400, "body.token_ids", "at least 1"),
    "ids that are words": (with_fields(token_ids=["a"]), 400, "body.token_ids.0", "integer"),
    "a nested list of ids": (with_fields(token_ids=[[1]]), 400, "body.token_ids.0", "integer"),
    "an id below zero": (with_fields(token_ids=[1, -1]), 400, "body.token_ids.1", "-1"),
    "an id beyond the vocabulary": (with_fields(token_ids=[50000]), 400, "token_ids", "50000"),
    "an id beyond 64 bits": (with_fields(token_ids=[2**70]), 400, None, None),
    "a prompt that fills the context": (with_fields(token_ids=[1] * 4096), 400, "token_ids", "4096"),
    "a prompt beyond the context": (with_fields(token_ids=[1] * 5000), 400, "token_ids", "5000"),
    "an unknown model": (with_fields(model="nope"), 404, "model", "nope"),
    "n of zero": (with_sampling(n=0), 400, None, "0"),
    "n over max_num_seqs": (with_sampling(n=9), 400, "sampling_params.n", "max_num_seqs (8), got 9"),
    "n over any limit": (with_sampling(n=10**6), 400, None, "1000000"),
    "n when greedy": (with_sampling(n=2, temperature=0), 400, None, "greedy"),
    "a null n": (with_sampling(n=None), 400, None, None),
    "a seed beyond 64 bits": (with_sampling(seed=2**70), 400, None, None),
    "an extra arg beyond 64 bits": (with_sampling(extra_args={"x": 2**70}), 400, None, None),
    "NaN": ('{"token_ids": [1], "sampling_params": {"temperature": NaN}}', 400, "temperature", "nan"),
    "Infinity": ('{"token_ids": [1], "sampling_params": {"top_p": Infinity}}', 400, None, None),
    "a huge temperature": (with_sampling(temperature=1e9), 400, "temperature", "[0, 2]"),
    "a negative temperature": (with_sampling(temperature=-1), 400, "temperature", "-1"),
    "top_p of two": (with_sampling(top_p=2), 400, "top_p", "2"),
    "logprobs over the limit": (with_sampling(logprobs=1000), 400, "logprobs", "20"),
    "negative logprobs": (with_sampling(logprobs=-2), 400, "logprobs", "-2"),
    "max_tokens of zero": (with_sampling(max_tokens=0), 400, "max_tokens", "0"),
    "min_tokens over max_tokens": (with_sampling(min_tokens=5, max_tokens=2), 400, None, None),
    "a text level without tokenizer": (with_fields(output_mode="text"), 400, "output_mode", "tokenizer"),
    "stop strings without tokenizer": (with_sampling(stop=["x"]), 400, "sampling_params.stop", "stop_token_ids"),
    "an unknown level": (with_fields(output_mode="images"), 400, "body.output_mode", "images"),
    "an empty cache_salt": (with_fields(cache_salt=""), 400, "cache_salt", "non-empty"),
    "a long cache_salt": (with_fields(cache_salt="a" * 129), 400, "cache_salt", "129"),
    "a cache_salt with @": (with_fields(cache_salt="a@b"), 400, "cache_salt", "@"),
    "a cache_salt with /": (with_fields(cache_salt="a/b"), 400, "cache_salt", "/"),
    "a cache_salt with a backslash": (with_fields(cache_salt="a\\b"), 400, "cache_salt", None),
    "a cache_salt with NUL": (with_fields(cache_salt="a\0"), 400, "cache_salt", None),
    "a cache_salt that is a number": (with_fields(cache_salt=5), 400, "body.cache_salt", None),
    "prompt_logprob_token_ids in a stream": (
        json.dumps(body(stream=True, prompt_logprob_token_ids=[[1], [2]])),
        400,
        "sampling_params.prompt_logprob_token_ids",
        "stream",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_it_is_refused_in_a_sentence(case):
    content, status, param, part = CASES[case]
    engine = ScriptedEngine()
    async with client_of(app_of(engine)) as client:
        reply = await client.post(GENERATE, content=content, headers=JSON)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["message"]
    if param is not None:
        assert error["param"] == param, error
    if part is not None:
        assert part in error["message"], error
    assert engine.requests == []


async def test_a_cache_salt_of_128_characters_is_fine():
    async with client_of(app_of()) as client:
        reply = await client.post(GENERATE, content=with_fields(cache_salt="a" * 128), headers=JSON)
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "opening", ["[", '{"a":', '{"token_ids":[1],"sampling_params":{"extra_args":{"a":' + "[" * 50000]
)
async def test_deep_nesting_is_a_400(opening):
    async with client_of(app_of()) as client:
        reply = await client.post(GENERATE, content=opening * 200_000 if len(opening) < 10 else opening, headers=JSON)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "Bad Request"


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "", "json"])
async def test_another_media_type_is_a_400(media_type):
    async with client_of(app_of()) as client:
        reply = await client.post(GENERATE, content=with_sampling(), headers={"Content-Type": media_type})
    assert reply.status_code == 400
    assert "Unsupported Media Type: Only 'application/json' is allowed" in reply.json()["error"]["message"]


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json;"])
async def test_parameters_and_case_of_the_media_type_do_not_matter(media_type):
    async with client_of(app_of()) as client:
        reply = await client.post(GENERATE, content=with_sampling(max_tokens=1), headers={"Content-Type": media_type})
    assert reply.status_code == 200


async def test_a_body_over_the_limit_is_a_413():
    async with client_of(app_of(max_body_bytes=1000)) as client:
        reply = await client.post(GENERATE, json=body([1] * 1000))
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == 413
    assert "1000 bytes" in reply.json()["error"]["message"]


async def test_a_chunked_body_over_the_limit_is_a_413_on_the_wire():
    app = app_of(max_body_bytes=100_000)
    async with serving(app) as port:
        client = await RawClient.open(port)
        head = f"POST {GENERATE} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        client.writer.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        piece = b"%x\r\n" % 50_000 + b" " * 50_000 + b"\r\n"
        for _ in range(20):
            client.writer.write(piece)
            await client.writer.drain()
        client.writer.write(b"0\r\n\r\n")
        assert b" 413 " in await client.read_until(b"\r\n")
        client.drop()


async def test_a_large_announced_body_is_refused_before_it_is_sent():
    async with serving(app_of(max_body_bytes=1000)) as port:
        client = await RawClient.open(port)
        head = f"POST {GENERATE} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        client.writer.write(head.encode() + b"content-length: 1000000000\r\nexpect: 100-continue\r\n\r\n")
        assert b" 413 " in await asyncio.wait_for(client.read_until(b"\r\n"), 5)
        client.drop()


@pytest.mark.parametrize(
    "limit, first, second",
    [
        ({"max_num_queued_reqs": 2}, body([1, 2], n=2), body([1, 2])),
        ({"max_num_queued_tokens": 3}, body([1, 2, 3, 4]), body([1])),
    ],
)
async def test_too_much_in_flight_is_a_503_that_says_when_to_come_back(limit, first, second):
    engine = ScriptedEngine(gate=True)
    async with client_of(app_of(engine, **limit)) as client:
        task = asyncio.create_task(client.post(GENERATE, json=first))
        await until(lambda: engine.requests)
        reply = await client.post(GENERATE, json=second)
        assert reply.status_code == 503
        assert reply.json()["error"]["type"] == "Service Unavailable"
        assert int(reply.headers["retry-after"]) >= 1
        engine.open_gate()
        assert (await task).status_code == 200
        assert (await client.post(GENERATE, json=second)).status_code == 200


async def test_unknown_paths_and_methods_answer_as_the_framework_does():
    async with client_of(app_of()) as client:
        missing = await client.post("/inference/v1/nope")
        wrong = await client.put(GENERATE)
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})


@pytest.mark.parametrize("path", ["/sleep", "/update_weights", "/v1/load_lora_adapter", "/collective_rpc"])
async def test_routes_of_the_protocol_that_are_not_here_say_so(path):
    async with client_of(app_of()) as client:
        reply = await client.post(path)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (501, 501, "NotImplementedError")
    assert error["message"].startswith(f"{path} is not implemented by this server. ")


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "JSON decode error"),
        ("{}", "Missing 'request_ids' in request body"),
        ('{"request_ids": []}', "Missing 'request_ids' in request body"),
        ("[]", "Missing 'request_ids' in request body"),
        ('{"request_ids": [1]}', "request_ids must be a list of strings"),
    ],
)
async def test_abort_without_ids_is_a_400(content, message):
    async with client_of(app_of()) as client:
        reply = await client.post("/inference/v1/abort_requests", content=content)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "Bad Request"
    assert message in reply.json()["error"]["message"]


async def test_strict_fields_refuses_what_is_otherwise_tolerated():
    payload = {**body(max_tokens=1), "who_knows": 1}
    async with client_of(app_of()) as client:
        assert (await client.post(GENERATE, json=payload)).status_code == 200
    async with client_of(app_of(strict_fields=True)) as client:
        reply = await client.post(GENERATE, json=payload)
    assert reply.status_code == 400
    assert "who_knows" in reply.json()["error"]["message"]
