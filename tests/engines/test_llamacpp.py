"""llama.cpp's `/completion` as a dialect, over answers of its shape.

1. Ids go as the prompt, ids and scores come back; the reason and the cached count are read.
2. It is asked in parts, whole, each continuing the ids so far: llama.cpp's own streams leave ids out.
3. A token that ends inside a character has no score; the others keep theirs.
4. Stop ids are watched for here: the id is kept, what follows is not, and nothing more is asked.
5. A seed gives the same parts every time, and other numbers in every part; a grammar is one part.
6. Prompts and outputs of another length than was sent and told are errors.
7. What it has no word for is refused by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.engines.remote import RawServer, ids_of, outputs_of, remote, reply, request, until_error
from tokenwire.engine.base import EngineOutput, Logprobs
from tokenwire.errors import EngineUnavailableError, GenerationError, InvalidRequestError, UnsupportedFeatureError
from tokenwire.wire.sampling import StructuredOutputs


def scored(token_id: int, *top: tuple[int, float]) -> dict[str, Any]:
    candidates = [{"id": i, "token": "t", "bytes": [116], "logprob": p} for i, p in top]
    return {"id": token_id, "token": "t", "bytes": [116], "logprob": -0.5, "top_logprobs": candidates}


def llama(
    tokens: Sequence[int] = (),
    /,
    *,
    ends: Sequence[int] = (),
    inside: Sequence[int] = (),
    status: int = 200,
    **fields: Any,
) -> RawServer:
    """Answers a prompt of three ids with `tokens`, as many as are asked for, up to an id of `ends`. Ids in `inside` end
    inside a character. `fields` stand in every answer; with a status, they are it."""

    def completion(body: bytes) -> bytes:
        asked = msgspec.json.decode(body)
        done = len(asked["prompt"]) - 3
        said = list(tokens[done : done + asked["n_predict"]])
        first_end = next((at for at, token_id in enumerate(said) if token_id in ends), None)
        ended = first_end is not None
        said = said if first_end is None else said[: first_end + 1]
        answer = {
            "tokens": said,
            "stop": True,
            "stop_type": "eos" if ended else "limit",
            "tokens_evaluated": len(asked["prompt"]),
            "tokens_predicted": len(said),
            "truncated": False,
            "timings": {"cache_n": max(0, len(asked["prompt"]) - 1)},
        }
        if "n_probs" in asked:
            answer["completion_probabilities"] = [scored(i, (i, -0.5), (99, -1.0)) for i in said if i not in inside]
        return msgspec.json.encode(fields if status != 200 else answer | fields)

    def answer(path: str, body: bytes, writer: asyncio.StreamWriter) -> Any:
        match path:
            case "/props":
                props = {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 4, "model_path": "m.gguf"}
                return reply(writer, msgspec.json.encode(props))
            case "/v1/models":
                return reply(writer, b'{"data": [{"id": "m", "meta": {"n_vocab": 321}}]}')
            case "/completion":
                return reply(writer, completion(body), status)
            case _:
                return reply(writer, b'{"status": "ok"}')

    return RawServer(answer)


def asked_of(server: RawServer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for path, body in server.seen if path == "/completion"]


async def answers(server: RawServer, **fields: Any) -> list[EngineOutput]:
    async with server.run() as url, remote(url, dialect="llamacpp") as engine:
        return await outputs_of(engine, request(**fields))


async def test_facts_come_from_props_and_models() -> None:
    async with llama().run() as url, remote(url, dialect="llamacpp") as engine:
        info = engine.info
    assert (info.max_model_len, info.vocab_size, info.max_num_seqs, info.model) == (2048, 321, 4, "m.gguf")


async def test_a_request_is_said_in_llamacpps_words() -> None:
    server = llama([7])
    (output,) = await answers(server, stream=False, max_tokens=1, temperature=0.5)
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ([7], "length", None)
    (body,) = asked_of(server)
    assert (body["prompt"], body["n_predict"], body["seed"], body["stream"]) == ([1, 2, 3], 1, -1, False)
    assert body["return_tokens"] is True


async def test_parts_continue_each_other() -> None:
    tokens = list(range(10, 40))
    server = llama(tokens)
    outputs = await answers(server, max_tokens=20, logprobs=2)
    assert [output.token_ids for output in outputs] == [[10], [11, 12], [13, 14, 15, 16], tokens[7:15], tokens[15:20]]
    assert [output.finish_reason for output in outputs] == [None, None, None, None, "length"]
    assert [body["prompt"] for body in asked_of(server)][:3] == [[1, 2, 3], [1, 2, 3, 10], [1, 2, 3, 10, 11, 12]]
    assert outputs[0].logprobs is not None
    assert outputs[0].logprobs.token_ids.tolist() == [[10, 10, 99]]
    assert [output.prompt is not None for output in outputs] == [True, False, False, False, False]
    assert outputs[0].prompt is not None
    assert outputs[0].prompt.num_cached_tokens == 2


async def test_an_end_within_the_parts_ends_them() -> None:
    server = llama([7, 8, 9, 10], ends=[9])
    outputs = await answers(server, max_tokens=20)
    assert (ids_of(outputs), outputs[-1].finish_reason, outputs[-1].stop_reason) == ([7, 8, 9], "stop", None)
    assert len(asked_of(server)) == 2


async def test_eos_that_is_a_stop_id_too_ends_as_eos() -> None:
    outputs = await answers(llama([7, 8, 9], ends=[9]), max_tokens=20, stop_token_ids=[9])
    assert (ids_of(outputs), outputs[-1].stop_reason) == ([7, 8, 9], None)
    outputs = await answers(llama([7, 8, 9], ends=[9]), max_tokens=20, stop_token_ids=[9], ignore_eos=True)
    assert (ids_of(outputs), outputs[-1].stop_reason) == ([7, 8, 9], 9)


async def test_eos_that_is_ignored_is_continued() -> None:
    server = llama([7, 8, 9, 10, 9, 12, 13, 14], ends=[9])
    outputs = await answers(server, max_tokens=8, ignore_eos=True)
    assert (ids_of(outputs), outputs[-1].finish_reason) == ([7, 8, 9, 10, 9, 12, 13, 14], "length")
    assert all("ignore_eos" not in body for body in asked_of(server))


async def test_presence_and_frequency_count_output_tokens_only() -> None:
    server = llama(range(7, 60))
    await answers(server, max_tokens=4, presence_penalty=0.5)
    assert [(body["n_predict"], body["repeat_last_n"]) for body in asked_of(server)] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    server = llama(range(7, 60))
    await answers(server, max_tokens=3, repetition_penalty=1.5)
    assert [(body["n_predict"], body["repeat_last_n"]) for body in asked_of(server)] == [(1, 4), (2, 6)]
    async with llama([7]).run() as url, remote(url, dialect="llamacpp") as engine:
        _, failure = await until_error(engine, request(presence_penalty=0.5, repetition_penalty=1.5))
    assert isinstance(failure, UnsupportedFeatureError)


async def test_tokens_that_end_inside_a_character_have_no_score() -> None:
    outputs = await answers(llama([5, 6, 7, 8, 5, 6, 7], inside=(5, 6)), stream=False, max_tokens=7, logprobs=1)
    assert ids_of(outputs) == [5, 6, 7, 8, 5, 6, 7]
    got = Logprobs.concat([output.logprobs for output in outputs if output.logprobs is not None])
    assert got.token_ids[:, 0].tolist() == [5, 6, 7, 8, 5, 6, 7]
    assert got.ranks.tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert [bool(x) for x in got.logprobs[:, 0] == -0.5] == [False, False, True, True, False, False, True]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_id_ends_the_request_here(streamed: bool) -> None:
    server = llama(range(7, 60))
    outputs = await answers(server, stop_token_ids=[12], stream=streamed, max_tokens=50)
    assert ids_of(outputs) == [7, 8, 9, 10, 11, 12]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", 12)
    assert len(asked_of(server)) == 3


async def test_a_seed_gives_the_same_parts_streamed_and_whole() -> None:
    asked = []
    for streamed in (False, True):
        server = llama(range(7, 60))
        await answers(server, stream=streamed, max_tokens=20, seed=3, temperature=1.0)
        asked.append([(body["prompt"], body["n_predict"], body["seed"]) for body in asked_of(server)])
    assert asked[0] == asked[1]
    seeds = [seed for _, _, seed in asked[0]]
    assert (seeds[0], len(set(seeds))) == (3, 5)
    assert all(0 <= seed < 2**32 for seed in seeds)


async def test_a_grammar_is_one_part() -> None:
    server = llama(range(7, 60))
    outputs = await answers(server, max_tokens=20, structured_outputs=StructuredOutputs(grammar='root ::= "a"'))
    assert len(outputs) == len(asked_of(server)) == 1
    assert asked_of(server)[0]["grammar"] == 'root ::= "a"'


async def test_a_full_context_ends_the_parts() -> None:
    outputs = await answers(llama(range(7, 60), truncated=True), max_tokens=20)
    assert (len(outputs), outputs[0].finish_reason) == (1, "length")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("tokens_evaluated", 4, "read 4 prompt tokens where 3"),
        ("tokens_predicted", 9, "sampled 9 tokens and tells"),
        ("tokens", [], "sampled"),
    ],
)
async def test_another_length_than_sent_or_told_is_an_error(field: str, value: Any, sentence: str) -> None:
    async with llama([7, 8], **{field: value}).run() as url, remote(url, dialect="llamacpp") as engine:
        _, failure = await until_error(engine, request())
    assert isinstance(failure, GenerationError)
    assert sentence in str(failure)


async def test_the_workers_refusal_is_ours() -> None:
    error = {"error": {"code": 400, "message": "too many", "type": "invalid_request_error"}}
    async with llama(status=400, **error).run() as url, remote(url, dialect="llamacpp") as engine:
        _, failure = await until_error(engine, request())
    assert isinstance(failure, InvalidRequestError)


async def test_a_worker_that_loads_its_model_is_tried_later() -> None:
    loading = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    async with llama(status=503, **loading).run() as url, remote(url, dialect="llamacpp") as engine:
        _, failure = await until_error(engine, request(stream=False))
    assert isinstance(failure, EngineUnavailableError)


@pytest.mark.parametrize(
    ("field", "value"),
    [("min_tokens", 2), ("allowed_token_ids", [5]), ("logprobs", -1), ("bad_words", ["x"]), ("prompt_logprobs", 1)],
)
async def test_what_llamacpp_has_no_word_for_is_refused_by_name(field: str, value: Any) -> None:
    async with llama([7]).run() as url, remote(url, dialect="llamacpp") as engine:
        _, failure = await until_error(engine, request(**{field: value}))
    assert isinstance(failure, UnsupportedFeatureError)
    assert failure.field == f"sampling_params.{field}"
