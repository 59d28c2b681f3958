"""A coordinator over token servers.

1. The same requests get the same answers from a coordinator as from the server itself, in JSON and in MessagePack,
   whole and streamed, scores of the prompt, experts, masks, weight versions, transfer params and counts included.
2. Stop strings are not the worker's business; nor is text.
3. A refusal of the worker is the coordinator's refusal, in the worker's words; so is an error event.
4. An abort and a lost client reach the worker; a stopped sequence ends there when it has its own call.
5. A worker that dies before the first token is replaced by another one; after it, the stream ends with an error.
6. The least loaded worker is chosen; a session keeps its worker, and only a lost worker's sessions move.
7. A slow reader makes the worker wait.
8. Headers and fields arrive at the worker.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.engines.remote import (
    FAST,
    RawServer,
    ids_of,
    outputs_of,
    remote,
    reply,
    request,
    stream,
    until_error,
    worker,
)
from tests.support.http import GENERATE, app_of, body, client_of, until
from tests.support.scripted_engine import ScriptedEngine, Step, counting, interleave, logprobs_of, sequence
from tokenwire.engine.base import (
    EngineOutput,
    EngineRequest,
    EngineStatus,
    OutputStream,
    PromptOutput,
    SpecDecodeStats,
    WeightSpan,
)
from tokenwire.engine.control import Pause, Resume
from tokenwire.engine.remote import RemoteEngine, RemoteOptions
from tokenwire.errors import (
    EngineUnavailableError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    TokenwireError,
    UnsupportedFeatureError,
)

SERVER = {"enable_prompt_tokens_details": True, "per_request_spec_decode_metrics": "detailed"}


def everything(asked: EngineRequest) -> list[Step]:
    """One sequence with every kind of array and fact that an engine may return."""
    rows = logprobs_of([[(5, -0.25), (9, -1.5)], [(6, -0.5), (6, -0.5)], [(7, float("-inf")), (3, -0.1)]], [3, 1, 0])
    outputs = sequence(
        [5, 6, 7],
        logprobs=rows if asked.sampling.logprobs is not None else None,
        finish_reason="stop",
        stop_reason=7,
        routed_experts=np.arange(12, dtype=np.uint8).reshape(3, 2, 2),
        weight_versions=[WeightSpan("s1", 0, 2), WeightSpan("s2", 2, 3)],
        kv_transfer_params={"blk": [1, 2]},
        ec_transfer_params={"e": 1},
        spec_decode=SpecDecodeStats(3, drafted=[3, 3, 2], accepted=[0, 3, 1]),
    )
    for output in outputs:
        output.sampling_mask = [np.array([1, 5, 9], np.int32)]
    prompt = PromptOutput(num_cached_tokens=2)
    if asked.sampling.prompt_logprobs is not None:
        prompt.logprobs = logprobs_of([[(2, -0.5), (4, -0.75)], [(3, -2.0), (3, -2.0)]], [2, 1])
    if asked.sampling.prompt_logprob_token_ids is not None:
        prompt.token_id_logprobs = np.array([[-1.0, -2.0], [-3.0, np.nan]], np.float32)
    outputs[0].prompt = prompt
    return interleave(outputs)


REQUESTS: dict[str, dict[str, Any]] = {
    "plain": body(max_tokens=3),
    "streamed": body(max_tokens=3, stream=True),
    "logprobs": body(max_tokens=3, logprobs=1),
    "logprobs streamed": body(max_tokens=3, logprobs=1, stream=True),
    "packed": {**body(max_tokens=3, logprobs=1), "logprobs_format": "packed"},
    "prompt scores": body(max_tokens=3, prompt_logprobs=1),
    "prompt scores streamed": body(max_tokens=3, prompt_logprobs=1, stream=True),
    "prompt ids scored": body(max_tokens=3, prompt_logprob_token_ids=[[1, 2], [3, -1]]),
    "transfer params": {**body(max_tokens=3), "kv_transfer_params": {"id": "z"}, "ec_transfer_params": {"e": 0}},
    "counted": {**body(max_tokens=3, stream=True), "stream_options": {"include_usage": True}},
    "counted each": {
        **body(max_tokens=3, stream=True),
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
}


async def answer(app: Any, payload: dict[str, Any]) -> str:
    async with client_of(app) as client:
        response = await client.post(GENERATE, json=payload, headers={"x-request-id": "same"})
    return re.sub(r'"created":\d+', "", response.text)


@pytest.mark.parametrize("wire", ["json", "msgpack"])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_coordinator_answers_as_the_server_itself(name: str, wire: str) -> None:
    direct = app_of(ScriptedEngine(everything), **SERVER)
    async with (
        worker(ScriptedEngine(everything), **SERVER) as url,
        remote(url, prefer_msgpack=wire == "msgpack") as engine,
    ):
        assert await answer(app_of(engine, **SERVER), REQUESTS[name]) == await answer(direct, REQUESTS[name])


@pytest.mark.parametrize("streamed", [False, True])
async def test_several_sequences_come_through_apart(streamed: bool) -> None:
    payload = body(max_tokens=3, n=3, logprobs=2, seed=1, stream=streamed)
    async with worker(ScriptedEngine()) as url, remote(url) as engine:
        assert await answer(app_of(engine), payload) == await answer(app_of(ScriptedEngine()), payload)


async def test_arrays_of_a_msgpack_worker_are_views_of_its_bytes() -> None:
    async with worker(ScriptedEngine()) as url, remote(url) as engine:
        first, *_ = await outputs_of(engine, request(logprobs=3))
    assert first.logprobs is not None
    assert not first.logprobs.token_ids.flags.owndata
    assert first.logprobs.token_ids.dtype == np.int32


async def test_the_worker_is_asked_for_ids_without_stop_strings() -> None:
    scripted = ScriptedEngine()
    async with worker(scripted, tokens_only=True) as url, remote(url) as engine:
        outputs = await outputs_of(engine, request(stop=["x"], include_stop_str_in_output=True, min_tokens=2))
    assert ids_of(outputs) == [1003, 1004, 1005, 1006]
    assert scripted.requests[0].sampling.stop_strings == []
    assert scripted.requests[0].sampling.min_tokens == 2


async def test_a_sequence_that_ends_here_keeps_the_labels_of_its_weights() -> None:
    def labelled(asked: EngineRequest) -> list[Step]:
        outputs = sequence([1, 2, 3, 4], finish_reason=None)
        for output, label in zip(outputs, ("s1", "s1", "s2", "s2"), strict=True):
            output.weight_version = label
        return interleave(outputs)

    async with worker(ScriptedEngine(labelled)) as url, remote(url) as engine:
        outputs = engine.generate(request(n=2, stop=["x"], seed=1))
        got = [output async for batch in _first_four(outputs) for output in batch]
    assert [output.weight_version for output in got] == ["s1", "s1", "s2", "s2"]


async def _first_four(outputs: OutputStream) -> AsyncIterator[list[EngineOutput]]:
    count = 0
    while count < 4:
        batch = await anext(outputs)
        count += len(batch)
        yield batch
    await outputs.aclose()


async def test_a_refusal_keeps_the_words_of_the_worker() -> None:
    async with worker(ScriptedEngine(vocab_size=10)) as url, remote(url, vocab_size=100) as engine:
        with pytest.raises(InvalidRequestError, match="Token id 50 is out of vocabulary"):
            await outputs_of(engine, request([50]))


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "BadRequestError", InvalidRequestError),
        (404, "NotFoundError", GenerationError),
        (500, "InternalServerError", GenerationError),
        (503, "Service Unavailable", OverloadedError),
        (503, "ServiceUnavailableError", EngineUnavailableError),
    ],
)
async def test_a_status_of_the_worker_is_an_error_of_ours(status: int, kind: str, error: type[TokenwireError]) -> None:
    content = msgspec.json.encode({"error": {"message": "because", "type": kind, "param": "p", "code": status}})
    async with vllm_like(lambda writer: reply(writer, content, status)).run() as url, remote(url) as engine:
        with pytest.raises(error, match="because"):
            await outputs_of(engine, request())


async def test_an_error_event_ends_the_stream_with_the_error_of_the_worker() -> None:
    steps = [*interleave(sequence([1, 2], finish_reason=None)), Step(error=GenerationError("no more memory"))]
    async with worker(ScriptedEngine(steps)) as url, remote(url) as engine:
        got, error = await until_error(engine, request())
    assert ids_of(got) == [1, 2]
    assert isinstance(error, GenerationError)
    assert error.message == "no more memory"


# --- early ends


def slow(asked: EngineRequest) -> list[Step]:
    return counting(asked, delay_s=0.02)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_aborted_request_hands_over_what_it_had(streamed: bool) -> None:
    scripted = ScriptedEngine(slow)
    async with worker(scripted) as url, remote(url) as engine:
        outputs = engine.generate(request(max_tokens=1000, stream=streamed))
        await until(lambda: scripted.num_live)
        await asyncio.sleep(0.1)
        assert await engine.abort(["r", "nobody"]) == ["r"]
        got = [output async for batch in outputs for output in batch]
        assert got[-1].finish_reason == "abort"
        assert ids_of(got)[:2] == [1003, 1004]
        await until(lambda: scripted.num_live == 0)


async def test_a_reader_that_leaves_ends_the_request_on_the_worker() -> None:
    scripted = ScriptedEngine(slow)
    async with worker(scripted) as url, remote(url) as engine:
        outputs = engine.generate(request(max_tokens=1000))
        await anext(outputs)
        await outputs.aclose()
        await until(lambda: scripted.num_live == 0)
        assert (await engine.stats()).num_running == 0


async def test_a_client_that_leaves_before_the_first_token_ends_the_request_on_the_worker() -> None:
    scripted = ScriptedEngine(gate=True)
    async with worker(scripted) as url, remote(url) as engine:
        outputs = engine.generate(request(stream=False))
        await until(lambda: scripted.num_live == 1)
        await outputs.aclose()
        await until(lambda: scripted.num_live == 0)


async def test_a_sequence_that_met_a_stop_string_ends_on_the_worker_while_others_go_on() -> None:
    scripted = ScriptedEngine(slow)
    async with worker(scripted) as url, remote(url) as engine:
        outputs = engine.generate(request(max_tokens=30, n=2, stop=["x"]))
        await anext(outputs)
        await until(lambda: scripted.num_live == 2)
        outputs.stop(0)
        await until(lambda: scripted.num_live == 1)
        rest = [output async for batch in outputs for output in batch]
    assert {output.index for output in rest} == {1}
    assert rest[-1].finish_reason == "length"


async def test_a_seeded_request_for_several_sequences_is_not_taken_apart() -> None:
    scripted = ScriptedEngine()
    async with worker(scripted) as url, remote(url) as engine:
        outputs = await outputs_of(engine, request(n=2, stop=["x"], seed=7))
    assert [r.sampling.n for r in scripted.requests] == [2]
    assert len(ids_of(outputs, 1)) == 4


async def test_closing_the_engine_ends_open_streams() -> None:
    async with worker(ScriptedEngine(gate=True)) as url, remote(url) as engine:
        outputs = engine.generate(request())
        await asyncio.sleep(0.05)
        await engine.close()
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await anext(outputs)


# --- workers that die


def vllm_like(on_generate: Any) -> RawServer:
    """A server with just enough of vLLM; `on_generate` answers generate requests."""

    def answer(path: str, content: bytes, writer: asyncio.StreamWriter) -> Any:
        if path == "/health":
            return reply(writer, b"")
        if path == "/v1/models":
            return reply(writer, b'{"data": [{"id": "m", "max_model_len": 4096}]}')
        if path == "/inference/v1/generate":
            return on_generate(writer)
        return reply(writer, b"{}", 404)

    return RawServer(answer)


def chunk(token_id: int, finish: str | None = None) -> bytes:
    return msgspec.json.encode({"choices": [{"index": 0, "token_ids": [token_id], "finish_reason": finish}]})


async def test_a_worker_that_dies_before_the_first_token_is_replaced() -> None:
    dying = vllm_like(lambda writer: writer.transport.abort())
    async with AsyncExitStack() as stack:
        bad = await stack.enter_async_context(dying.run())
        good = await stack.enter_async_context(worker(ScriptedEngine()))
        engine = await stack.enter_async_context(remote(bad, good))
        for i in range(4):
            assert ids_of(await outputs_of(engine, request(request_id=f"r{i}"))) == [1003, 1004, 1005, 1006]
        assert any(path == GENERATE for path, _ in dying.seen)


async def test_a_worker_that_dies_after_the_first_token_ends_the_stream_with_an_error() -> None:
    dying = vllm_like(lambda writer: stream(writer, [chunk(5), chunk(6)], cut=True))
    async with AsyncExitStack() as stack:
        bad = await stack.enter_async_context(dying.run())
        good = ScriptedEngine(eos_token_ids=(2,))
        url = await stack.enter_async_context(worker(good))
        engine = await stack.enter_async_context(remote(bad, url))
        session = next(s for s in map(str, range(99)) if engine._fleet.choose(request(session_id=s)).url == bad)  # type: ignore[union-attr]
        got, error = await until_error(engine, request(session_id=session))
        assert ids_of(got) == [5, 6]
        assert isinstance(error, EngineUnavailableError)
        assert "went away" in error.message
        assert good.requests == []


async def test_a_request_gives_up_after_so_many_workers() -> None:
    dying = vllm_like(lambda writer: writer.transport.abort())
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(vllm_like(lambda w: w.transport.abort()).run()) for _ in range(3)]
        urls.append(await stack.enter_async_context(dying.run()))
        engine = await stack.enter_async_context(remote(*urls, max_attempts=2, health_interval_s=60))
        with pytest.raises(EngineUnavailableError, match="went away"):
            await outputs_of(engine, request())
        assert sum(worker.is_up for worker in engine._fleet.workers) == 2


async def test_a_full_worker_sends_the_request_to_another_one() -> None:
    full = msgspec.json.encode({"error": {"message": "full", "type": "Service Unavailable", "code": 503}})
    async with AsyncExitStack() as stack:
        busy = await stack.enter_async_context(vllm_like(lambda w: reply(w, full, 503)).run())
        free = await stack.enter_async_context(worker(ScriptedEngine()))
        engine = await stack.enter_async_context(remote(busy, free))
        for i in range(3):
            assert len(ids_of(await outputs_of(engine, request(request_id=str(i))))) == 4


async def test_an_error_of_a_worker_that_lives_is_not_tried_elsewhere() -> None:
    error = msgspec.json.encode({"error": {"message": "poison", "type": "InternalServerError", "code": 500}})
    first, second = (vllm_like(lambda w: reply(w, error, 500)) for _ in range(2))
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(server.run()) for server in (first, second)]
        engine = await stack.enter_async_context(remote(*urls))
        with pytest.raises(GenerationError, match="poison"):
            await outputs_of(engine, request())
    assert sum(path == GENERATE for server in (first, second) for path, _ in server.seen) == 1


async def test_a_worker_that_hangs_is_left_by_its_requests() -> None:
    hanging = asyncio.Event()

    async def answer(path: str, content: bytes, writer: asyncio.StreamWriter) -> None:
        if hanging.is_set():
            await asyncio.sleep(30)
        reply(writer, b'{"data": [{"id": "m", "max_model_len": 4096}]}' if path == "/v1/models" else b"", 200)

    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(RawServer(answer).run())
        engine = await stack.enter_async_context(remote(url, health_timeout_s=0.1, abandon_after_s=0.3))
        hanging.set()
        with pytest.raises(EngineUnavailableError, match="went away"):
            await outputs_of(engine, request())
        assert engine.status is EngineStatus.RESTARTING


async def test_without_a_worker_requests_are_told_to_come_back_until_one_is_there() -> None:
    async with AsyncExitStack() as workers, AsyncExitStack() as stack:
        url = await workers.enter_async_context(worker(ScriptedEngine()))
        engine = await stack.enter_async_context(remote(url))
        await workers.aclose()
        await until(lambda: engine.status is EngineStatus.RESTARTING)
        with pytest.raises(EngineUnavailableError, match="The only worker does not answer"):
            await outputs_of(engine, request())
        async with client_of(app_of(engine)) as client:
            refused = await client.post(GENERATE, json=body(max_tokens=1))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert refused.json()["error"]["message"].startswith(
                "The only worker does not answer; the coordinator asks"
            )
            assert (await client.get("/readyz")).text.startswith("The only worker does not answer")


async def test_a_coordinator_without_a_tokenizer_names_the_flag_that_gives_it_one() -> None:
    async with worker(ScriptedEngine()) as url, remote(url) as engine, client_of(app_of(engine)) as client:
        for asked in ({**body(max_tokens=1), "output_mode": "text"}, body(max_tokens=1, stop=["x"])):
            refused = await client.post(GENERATE, json=asked)
            assert refused.status_code == 400
            assert "--engine remote has one with --tokenizer FOLDER" in refused.json()["error"]["message"]
        refused = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
        assert "--tokenizer FOLDER" in refused.json()["error"]["message"]


async def test_an_engine_without_any_worker_does_not_start() -> None:
    engine = RemoteEngine(RemoteOptions(**{**FAST, "start_timeout_s": 0.2, "workers": ["http://127.0.0.1:1"]}))
    with pytest.raises(EngineUnavailableError, match=re.escape("None of http://127.0.0.1:1 came up")):
        await engine.start()
    await engine.close()


async def test_workers_of_different_models_do_not_start_together() -> None:
    async with worker(ScriptedEngine(vocab_size=10)) as one, worker(ScriptedEngine(vocab_size=20)) as other:
        engine = RemoteEngine(RemoteOptions(**{**FAST, "workers": [one, other]}))
        with pytest.raises(EngineUnavailableError, match="different models"):
            await engine.start()
        await engine.close()


# --- choice


async def test_the_least_loaded_worker_is_chosen() -> None:
    engines = [ScriptedEngine(gate=True) for _ in range(3)]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(worker(e, max_num_seqs=64)) for e in engines]
        engine = await stack.enter_async_context(remote(*urls))
        streams = [engine.generate(request(request_id=str(i))) for i in range(9)]
        await until(lambda: sum(e.num_live for e in engines) == 9)
        assert [e.num_live for e in engines] == [3, 3, 3]
        for outputs in streams:
            await outputs.aclose()


async def test_a_session_keeps_its_worker_and_only_those_of_a_lost_one_move() -> None:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(worker(ScriptedEngine())) for _ in range(3)]
        engine = await stack.enter_async_context(remote(*urls, health_interval_s=60))
        fleet = engine._fleet

        def places() -> dict[str, Any]:
            return {s: fleet.choose(request(session_id=s)) for s in map(str, range(60))}

        before = places()
        assert places() == before
        assert len(set(before.values())) == 3
        lost = fleet.workers[1]
        lost.suspect("test")
        after = places()
        assert {s for s in before if before[s] is not after[s]} == {s for s in before if before[s] is lost}


async def test_session_rank_trace_priority_and_salt_arrive_at_the_worker() -> None:
    scripted = ScriptedEngine()
    asked = replace(
        request(),
        session_id="s",
        data_parallel_rank=3,
        trace_headers={"traceparent": "00-a-b-01"},
        priority=2,
        cache_salt="salt",
        reasoning_ended=True,
        reasoning_parser_kwargs={"chat_template_kwargs": {"a": 1}},
    )
    async with worker(scripted) as url, remote(url) as engine:
        await outputs_of(engine, asked)
    got = scripted.requests[0]
    for name in ("session_id", "data_parallel_rank", "trace_headers", "priority", "cache_salt", "reasoning_ended"):
        assert getattr(got, name) == getattr(asked, name), name
    assert got.reasoning_parser_kwargs == asked.reasoning_parser_kwargs


# --- back pressure, control


async def test_a_slow_reader_makes_the_worker_wait() -> None:
    # Each event is large, so that the sockets' own buffers hold a small part of what the worker has to say.
    wide = logprobs_of([[(1000 + j, -0.5) for j in range(2000)]])
    steps = [Step([EngineOutput(0, [1], wide)]) for _ in range(3000)]
    steps.append(Step([EngineOutput(0, [2], wide, finish_reason="stop")]))
    scripted = ScriptedEngine(lambda asked: steps, max_logprobs=-1)
    async with worker(scripted) as url, remote(url) as engine:
        outputs = engine.generate(request(max_tokens=4000, logprobs=-1))
        await anext(outputs)
        await asyncio.sleep(0.3)
        pending = sum(len(output.token_ids) for output in outputs._pending)  # type: ignore[attr-defined]
        assert pending < 500
        rest = [output async for batch in outputs for output in batch]
    assert rest[-1].finish_reason == "stop"


async def test_control_messages_go_to_every_worker() -> None:
    engines = [ScriptedEngine() for _ in range(2)]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(worker(e)) for e in engines]
        engine = await stack.enter_async_context(remote(*urls))
        await engine.control(Pause(mode="wait"))
        assert engine.status is EngineStatus.PAUSED
        await engine.control(Resume())
        assert engine.status is EngineStatus.READY
    assert [[type(m) for m in e.controls] for e in engines] == [[Pause, Resume]] * 2


async def test_a_control_route_that_a_worker_lacks_is_refused_by_name() -> None:
    async with vllm_like(lambda w: None).run() as url, remote(url) as engine:
        with pytest.raises(UnsupportedFeatureError, match="VLLM_SERVER_DEV_MODE"):
            await engine.control(Pause())
