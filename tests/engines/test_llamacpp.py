"""llama.cpp's `/completion` as a dialect, over answers of its shape.

1. Ids go as the prompt, ids and scores come back; the reason and the cached count are read.
2. Stop ids are watched for here: the id is kept, what follows is not, and the connection is let go.
3. What it has no word for is refused by name.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.engines.remote import RawServer, ids_of, outputs_of, remote, reply, request, stream, until_error
from tests.support.http import until
from tokenwire.errors import EngineUnavailableError, InvalidRequestError, UnsupportedFeatureError


def scored(token_id: int, *top: tuple[int, float]) -> dict[str, Any]:
    candidates = [{"id": i, "token": "t", "bytes": [116], "logprob": p} for i, p in top]
    return {"id": token_id, "token": "t", "bytes": [116], "logprob": -0.5, "top_logprobs": candidates}


def event(*tokens: int, stop_type: str | None = None, **fields: Any) -> bytes:
    said = {"index": 0, "content": "", "tokens": list(tokens), "stop": stop_type is not None, "id_slot": 0}
    return msgspec.json.encode(said | ({"stop_type": stop_type} if stop_type else {}) | fields)


def llama(*events: bytes, whole: bytes | None = None, status: int = 200) -> RawServer:
    def answer(path: str, body: bytes, writer: asyncio.StreamWriter) -> Any:
        match path:
            case "/props":
                props = {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 4, "model_path": "m.gguf"}
                return reply(writer, msgspec.json.encode(props))
            case "/v1/models":
                return reply(writer, b'{"data": [{"id": "m", "meta": {"n_vocab": 321}}]}')
            case "/completion" if whole is not None:
                return reply(writer, whole, status)
            case "/completion":
                return stream(writer, list(events), end=False, pause_s=0.01)
            case _:
                return reply(writer, b'{"status": "ok"}')

    return RawServer(answer)


LAST = event(stop_type="limit", timings={"cache_n": 2})


async def test_facts_come_from_props_and_models() -> None:
    async with llama().run() as url, remote(url, dialect="llamacpp") as engine:
        info = engine.info
    assert (info.max_model_len, info.vocab_size, info.max_num_seqs, info.model) == (2048, 321, 4, "m.gguf")


async def test_ids_and_scores_come_back_streamed() -> None:
    events = (
        event(7, completion_probabilities=[scored(7, (7, -0.5), (9, -1.0))], timings={"cache_n": 1}),
        event(8, completion_probabilities=[scored(8, (5, -0.1), (8, -0.5))]),
        LAST,
    )
    server = llama(*events)
    async with server.run() as url, remote(url, dialect="llamacpp") as engine:
        outputs = await outputs_of(engine, request(logprobs=2, seed=3, temperature=0.5))
    assert ids_of(outputs) == [7, 8]
    assert outputs[-1].finish_reason == "length"
    assert outputs[0].logprobs is not None
    assert outputs[0].logprobs.token_ids.tolist() == [[7, 7, 9]]
    assert outputs[1].logprobs is not None
    assert (outputs[1].logprobs.token_ids[0, 0], outputs[1].logprobs.ranks[0]) == (8, 2)
    assert outputs[0].prompt is not None
    assert outputs[0].prompt.num_cached_tokens == 1
    (body,) = [msgspec.json.decode(body) for path, body in server.seen if path == "/completion"]
    assert (body["prompt"], body["n_predict"], body["n_probs"], body["seed"]) == ([1, 2, 3], 4, 2, 3)
    assert body["return_tokens"] is True


async def test_a_whole_answer_is_read() -> None:
    server = llama(whole=event(7, 8, stop_type="eos", timings={"cache_n": 0}))
    async with server.run() as url, remote(url, dialect="llamacpp") as engine:
        (output,) = await outputs_of(engine, request(stream=False))
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ([7, 8], "stop", None)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_id_ends_the_request_here(streamed: bool) -> None:
    server = llama(*(event(i) for i in (7, 8, 9, 10, 11)), LAST)
    async with server.run() as url, remote(url, dialect="llamacpp") as engine:
        outputs = await outputs_of(engine, request(stop_token_ids=[9], stream=streamed))
        await until(lambda: engine._fleet.workers[0].num_running == 0)
    assert ids_of(outputs) == [7, 8, 9]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", 9)


async def test_an_error_event_is_our_error() -> None:
    error = msgspec.json.encode({"error": {"code": 400, "message": "too many", "type": "invalid_request_error"}})
    async with llama(event(7), error).run() as url, remote(url, dialect="llamacpp") as engine:
        got, failure = await until_error(engine, request())
    assert ids_of(got) == [7]
    assert isinstance(failure, InvalidRequestError)


async def test_a_worker_that_loads_its_model_is_tried_later() -> None:
    loading = b'{"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}'
    async with llama(whole=loading, status=503).run() as url, remote(url, dialect="llamacpp") as engine:
        _, failure = await until_error(engine, request(stream=False))
    assert isinstance(failure, EngineUnavailableError)


@pytest.mark.parametrize(
    ("field", "value"),
    [("min_tokens", 2), ("allowed_token_ids", [5]), ("logprobs", -1), ("bad_words", ["x"]), ("prompt_logprobs", 1)],
)
async def test_what_llamacpp_has_no_word_for_is_refused_by_name(field: str, value: Any) -> None:
    async with llama(LAST).run() as url, remote(url, dialect="llamacpp") as engine:
        _, failure = await until_error(engine, request(**{field: value}))
    assert isinstance(failure, UnsupportedFeatureError)
    assert failure.field == f"sampling_params.{field}"
