"""SGLang, both ways: our `/generate` routes, and the dialect that speaks to such a server.

1. `/generate` takes input_ids and answers output_ids and meta_info, scores as (logprob, id, text) triples.
2. A stream's events repeat everything so far; the last one has the finish reason. A batch is answered as a list.
3. `/abort_request` ends a request by rid.
4. The dialect over our own routes gives what the scale-out dialect gives, whole and streamed, with scores.
5. The dialect reads streams that repeat and streams that give news only.
6. What SGLang has no word for is refused by name.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.engines.remote import RawServer, ids_of, outputs_of, remote, reply, request, stream, until_error, worker
from tests.support.http import app_of, client_of, events_of, until
from tests.support.scripted_engine import ScriptedEngine, counting, interleave, logprobs_of, one_sequence, sequence
from tokenwire.engine.base import EngineOutput, EngineRequest, PromptOutput
from tokenwire.engine.remote import RemoteEngine
from tokenwire.errors import InvalidRequestError, UnsupportedFeatureError


async def generate(engine: ScriptedEngine, **payload: Any) -> Any:
    async with client_of(app_of(engine)) as client:
        response = await client.post("/generate", json={"input_ids": [1, 2, 3], **payload})
    is_stream = response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text) if is_stream else response.json()


SCORED = logprobs_of([[(5, -0.25), (9, -0.1), (5, -0.25)], [(6, -0.5), (6, -0.5), (8, -2.0)]], [2, 1])


def scored(asked: EngineRequest) -> Any:
    outputs = sequence([5, 6], logprobs=SCORED if asked.sampling.logprobs is not None else None, finish_reason="stop")
    outputs[0].prompt = PromptOutput(num_cached_tokens=1)
    if asked.sampling.prompt_logprobs is not None:
        outputs[0].prompt.logprobs = logprobs_of([[(2, -1.5), (4, -0.5)], [(3, -0.25), (3, -0.25)]], [7, 1])
    return interleave(outputs)


async def test_ids_go_in_and_ids_come_out_with_their_facts() -> None:
    body = await generate(ScriptedEngine(), sampling_params={"max_new_tokens": 3}, rid="mine")
    assert body["output_ids"] == [1003, 1004, 1005]
    meta = body["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("mine", 3, 3)
    assert meta["finish_reason"] == {"type": "length", "length": 3}


async def test_scores_are_triples_and_candidates_stand_in_order_of_rank() -> None:
    body = await generate(ScriptedEngine(scored), return_logprob=True, top_logprobs_num=2, logprob_start_len=0)
    meta = body["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.25, 5, None], [-0.5, 6, None]]
    assert [[c[1] for c in row] for row in meta["output_top_logprobs"]] == [[9, 5], [6, 8]]
    assert meta["input_token_logprobs"] == [[None, 1, None], [-1.5, 2, None], [-0.25, 3, None]]
    assert [row and [c[1] for c in row] for row in meta["input_top_logprobs"]][0] is None


async def test_parameters_arrive_under_our_names() -> None:
    engine = ScriptedEngine()
    await generate(
        engine,
        sampling_params={"max_new_tokens": 4, "min_new_tokens": 1, "top_k": -1, "sampling_seed": 7, "regex": "a+"},
        routed_dp_rank=2,
        session_id="s",
        priority=3,
    )
    (got,) = engine.requests
    assert (got.sampling.max_tokens, got.sampling.min_tokens, got.sampling.seed) == (4, 1, 7)
    assert got.sampling.structured_outputs is not None
    assert got.sampling.structured_outputs.regex == "a+"
    assert (got.data_parallel_rank, got.session_id, got.priority) == (2, "s", 3)


async def test_without_max_new_tokens_there_are_128() -> None:
    assert len((await generate(ScriptedEngine()))["output_ids"]) == 128


async def test_a_stop_says_which_id_matched() -> None:
    body = await generate(ScriptedEngine(one_sequence([5, 6, 7], finish_reason="stop", stop_reason=7)))
    assert body["meta_info"]["finish_reason"] == {"type": "stop", "matched": 7}


async def test_events_of_a_stream_repeat_everything_so_far() -> None:
    events = await generate(ScriptedEngine(), sampling_params={"max_new_tokens": 3}, stream=True)
    assert [event["output_ids"] for event in events] == [[1003], [1003, 1004], [1003, 1004, 1005]]
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None, None]
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


async def test_a_batch_is_answered_as_a_list_in_order() -> None:
    body = await generate(ScriptedEngine(), input_ids=[[1], [1, 2]], sampling_params={"max_new_tokens": 1}, rid="b")
    assert [reply["output_ids"] for reply in body] == [[1001], [1002]]
    assert [reply["meta_info"]["id"] for reply in body] == ["b_0", "b_1"]


async def test_a_batch_that_does_not_fit_is_told_to_come_back_before_any_of_it_runs() -> None:
    engine = ScriptedEngine(gate=True)
    async with client_of(app_of(engine, max_num_queued_reqs=3)) as client:
        running = asyncio.create_task(client.post("/generate", json={"input_ids": [[1], [2]]}))
        await until(lambda: engine.num_live == 2)
        answer = await client.post("/generate", json={"input_ids": [[3], [4]]})
        engine.open_gate()
        assert (await running).status_code == 200
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Service Unavailable")
    assert len(engine.requests) == 2


@pytest.mark.parametrize(
    "payload",
    [{"input_ids": []}, {"input_ids": [[1], 2]}, {"input_ids": [[1], [2]], "stream": True}, {"input_ids": [-1]}],
)
async def test_bad_prompts_are_refused(payload: dict[str, Any]) -> None:
    body = await generate(ScriptedEngine(), **payload)
    assert body["error"]["code"] == 400


async def test_a_request_is_aborted_by_its_rid() -> None:
    engine = ScriptedEngine(lambda asked: counting(asked, delay_s=0.02))
    async with client_of(app_of(engine)) as client:
        asked = {"input_ids": [1], "rid": "gone", "sampling_params": {"max_new_tokens": 500}}
        running = asyncio.create_task(client.post("/generate", json=asked))
        await until(lambda: engine.num_live)
        assert (await client.post("/abort_request", json={"rid": "gone"})).status_code == 200
        meta = (await running).json()["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"


async def test_a_batch_is_aborted_by_the_rid_it_was_made_from_whichever_prompts_still_run() -> None:
    lengths = {1: 1, 2: 500}

    def script(asked: EngineRequest) -> Any:
        return interleave(sequence([7] * lengths[len(asked.prompt_token_ids)]), delay_s=0.02)

    engine = ScriptedEngine(script)
    async with client_of(app_of(engine)) as client:
        running = asyncio.create_task(client.post("/generate", json={"input_ids": [[1], [1, 2]], "rid": "b"}))
        await until(lambda: len(engine.requests) == 2 and engine.num_live == 1)
        await client.post("/abort_request", json={"rid": "b"})
        replies = (await asyncio.wait_for(running, 5)).json()
    assert [reply["meta_info"]["finish_reason"]["type"] for reply in replies] == ["length", "abort"]


# --- the dialect


def facts(outputs: list[EngineOutput]) -> Any:
    scores = [output.logprobs for output in outputs if output.logprobs is not None]
    return (
        ids_of(outputs),
        outputs[-1].finish_reason,
        [scores_of.token_ids[:, 0].tolist() for scores_of in scores],
        [np.round(s.logprobs[:, 0], 3).tolist() for s in scores],
    )


async def answered(engine: RemoteEngine, streamed: bool) -> Any:
    asked = request(max_tokens=3, logprobs=2, prompt_logprobs=1, stream=streamed)
    return facts(await outputs_of(engine, asked))


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_dialect_over_our_own_routes_gives_what_scale_out_gives(streamed: bool) -> None:
    async with worker(ScriptedEngine(scored)) as url, remote(url) as one, remote(url, dialect="sglang") as other:
        assert await answered(other, streamed) == await answered(one, streamed)
        assert other.info.max_model_len == 4096


async def test_an_abort_reaches_an_sglang_worker() -> None:
    scripted = ScriptedEngine(lambda asked: counting(asked, delay_s=0.02))
    async with worker(scripted) as url, remote(url, dialect="sglang") as engine:
        outputs = engine.generate(request(max_tokens=500))
        await anext(outputs)
        await engine.abort(["r"])
        rest = [output async for batch in outputs for output in batch]
        assert rest[-1].finish_reason == "abort"
        await until(lambda: scripted.num_live == 0)


def sglang_like(*events: dict[str, Any]) -> RawServer:
    def answer(path: str, body: bytes, writer: asyncio.StreamWriter) -> Any:
        if path == "/generate":
            return stream(writer, [msgspec.json.encode(event) for event in events])
        return reply(writer, b'{"model_path": "m"}' if path == "/get_model_info" else b"{}")

    return RawServer(answer)


def event(ids: list[int], total: int, finish: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {"output_ids": ids, "meta_info": {"completion_tokens": total, "finish_reason": finish, **meta}}


STOP = {"type": "stop", "matched": 9}
TRIPLES = [[-0.5, 7, None], [-0.25, 8, None], [-1.0, 9, None]]
REPEATING = [
    event([7], 1, output_token_logprobs=TRIPLES[:1], cached_tokens=2),
    event([7, 8], 2, output_token_logprobs=TRIPLES[:2]),
    event([7, 8, 9], 3, STOP, output_token_logprobs=TRIPLES),
]
NEWS_ONLY = [
    event([7], 1, output_token_logprobs=TRIPLES[:1], cached_tokens=2),
    event([8], 2, output_token_logprobs=TRIPLES[1:2]),
    event([9], 3, STOP, output_token_logprobs=TRIPLES[2:]),
]


@pytest.mark.parametrize("events", [REPEATING, NEWS_ONLY], ids=["repeating", "news only"])
async def test_both_kinds_of_stream_give_every_id_once(events: list[dict[str, Any]]) -> None:
    async with sglang_like(*events).run() as url, remote(url, dialect="sglang") as engine:
        outputs = await outputs_of(engine, request(logprobs=0, stop_token_ids=[9]))
    assert [output.token_ids for output in outputs] == [[7], [8], [9]]
    assert [o.logprobs.logprobs[0, 0] for o in outputs if o.logprobs is not None] == [-0.5, -0.25, -1.0]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", 9)
    assert outputs[0].prompt is not None
    assert outputs[0].prompt.num_cached_tokens == 2


async def test_an_eos_has_no_stop_reason() -> None:
    async with sglang_like(event([9], 1, STOP)).run() as url, remote(url, dialect="sglang") as engine:
        (output,) = await outputs_of(engine, request())
    assert (output.finish_reason, output.stop_reason) == ("stop", None)


async def test_a_refusal_inside_a_stream_is_the_callers_fault() -> None:
    finish = {"type": "abort", "message": "too long", "status_code": 400}
    async with sglang_like(event([], 0, finish)).run() as url, remote(url, dialect="sglang") as engine:
        _, error = await until_error(engine, request())
    assert isinstance(error, InvalidRequestError)
    assert error.message == "too long"


async def test_what_sglang_has_no_word_for_is_refused_by_name() -> None:
    async with sglang_like().run() as url, remote(url, dialect="sglang") as engine:
        _, error = await until_error(engine, request(allowed_token_ids=[5]))
    assert isinstance(error, UnsupportedFeatureError)
    assert error.field == "sampling_params.allowed_token_ids"


async def test_several_sequences_are_several_calls_with_seeds_that_follow_each_other() -> None:
    server = sglang_like(event([9], 1, STOP))
    async with server.run() as url, remote(url, dialect="sglang") as engine:
        outputs = await outputs_of(engine, request(n=3, seed=5))
    bodies = [msgspec.json.decode(body) for path, body in server.seen if path == "/generate"]
    assert sorted(body["sampling_params"]["sampling_seed"] for body in bodies) == [5, 6, 7]
    assert {output.index for output in outputs} == {0, 1, 2}
