"""The last word of a sequence that a stop string ended: what only its end tells is not lost.

1. A stopped sequence gives one last output without tokens; it comes in time, from the engine or from nobody.
2. Weight versions and routed experts are cut to the tokens kept; transfer params come through.
3. It is waited for only where one of these facts is wanted; other choices go on meanwhile.
4. Over a worker it is the worker's answer to an abort.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.derender.sources import ByteTokens
from tests.engines.remote import remote, worker
from tests.support.http import app_of, body, client_of, until
from tests.support.scripted_engine import ScriptedEngine, Step, interleave, sequence
from tokenwire.engine.base import Capabilities, EngineOutput, EngineRequest, WeightSpan
from tokenwire.engine.queue import RequestQueue
from tokenwire.errors import EngineDeadError
from tokenwire.service.context import RequestContext, ServiceOptions
from tokenwire.service.generate import GenerateService
from tokenwire.service.models import ModelRegistry
from tokenwire.service.text import TokenizerText
from tokenwire.wire import codec
from tokenwire.wire.generate import GenerateRequest

TOKENS = ["a", "b", "STOP", "c", "d", "e"]
SPANS = [WeightSpan("s1", 0, 1), WeightSpan("s2", 1, 6)]
EXPERTS = np.arange(40, dtype=np.uint8).reshape(10, 2, 2)
LABELS_AT_END = Capabilities(weight_versions_at_end=True)


def service(engine: ScriptedEngine) -> GenerateService:
    text = TokenizerText(ByteTokens(TOKENS, ()))
    return GenerateService(engine, ModelRegistry(["m"], root="m"), ServiceOptions(), text=text)


def script(*, n: int = 1, delay_s: float = 0.005) -> list[Step]:
    """Sequence 0 runs into the stop string, the others do not; no sequence ends by itself but the last."""
    outputs = [sequence([0, 1, 2, 3, 4, 5] * 4, finish_reason=None)]
    outputs += [sequence([0, 1, 3, 4, 5], index=index) for index in range(1, n)]
    return interleave(*outputs, delay_s=delay_s)


async def ask(svc: GenerateService, *, stream: bool = False, n: int = 1, **fields: Any) -> list[Any]:
    """The choices of the reply, or of its chunks in order."""
    sampling = {"max_tokens": 50, "n": n, "stop": ["STOP"]}
    request, _ = codec.convert(
        GenerateRequest, {"token_ids": [9, 9, 9], "sampling_params": sampling, "stream": stream, **fields}
    )
    prepared = await svc.prepare(request, RequestContext())
    if not stream:
        reply = await svc.full(prepared)
        return [*reply.choices, reply]
    return [choice async for events in svc.stream(prepared) for event in events for choice in event.choices]


# --- 1. the queue


def queue_of(ask_end: Any, *, n: int = 1) -> tuple[RequestQueue, list[int]]:
    stopped: list[int] = []
    return RequestQueue(n, lambda: None, stopped.append, ask_end=ask_end), stopped


async def test_the_last_word_has_no_tokens_and_ends_the_stream() -> None:
    queue, stopped = queue_of(lambda index: True)
    queue.put(EngineOutput(0, [1, 2]))
    await anext(queue)
    queue.stop(0, 5.0)
    queue.put(EngineOutput(0, [3]))
    queue.put(EngineOutput(0, [4], finish_reason="length", weight_versions=SPANS, kv_transfer_params={"a": 1}))
    (last,) = await anext(queue)
    assert (last.token_ids, last.finish_reason, last.stop_reason) == ([], "abort", None)
    assert (last.weight_versions, last.kv_transfer_params) == (SPANS, {"a": 1})
    assert [batch async for batch in queue] == []
    assert stopped == []


async def test_an_end_that_waits_unread_is_the_last_word() -> None:
    queue, stopped = queue_of(lambda index: pytest.fail("it has ended"))
    queue.put(EngineOutput(0, [1]))
    await anext(queue)
    queue.put(EngineOutput(0, [2]))
    queue.put(EngineOutput(0, [3], finish_reason="stop", weight_versions=SPANS))
    queue.stop(0, 5.0)
    (last,) = await anext(queue)
    assert (last.token_ids, last.weight_versions) == ([], SPANS)
    assert [batch async for batch in queue] == []
    assert stopped == []


@pytest.mark.parametrize("ask_end", [None, lambda index: False, lambda index: True])
async def test_without_a_last_word_an_empty_one_comes_in_time(ask_end: Any) -> None:
    queue, stopped = queue_of(ask_end)
    queue.stop(0, 0.02)
    async with asyncio.timeout(1):
        (last,) = await anext(queue)
    assert (last.token_ids, last.finish_reason) == ([], "abort")
    assert stopped == [0]
    queue.put(EngineOutput(0, [], finish_reason="abort", weight_versions=SPANS))  # too late
    assert [batch async for batch in queue] == []


async def test_an_engine_that_dies_does_not_take_a_stopped_sequence_with_it() -> None:
    queue, _ = queue_of(lambda index: True, n=2)
    queue.stop(0, 5.0)
    queue.fail(EngineDeadError("gone"))
    assert [output.index for output in await anext(queue)] == [0]
    with pytest.raises(EngineDeadError):
        await anext(queue)
    alone, _ = queue_of(lambda index: True)
    alone.stop(0, 5.0)
    alone.fail(EngineDeadError("gone"))
    assert len([batch async for batch in alone]) == 1


async def test_a_reader_that_leaves_waits_for_nothing() -> None:
    left: list[str] = []
    queue = RequestQueue(1, lambda: left.append("abort"), lambda index: None, ask_end=lambda index: True)
    queue.stop(0, 0.01)
    await queue.aclose()
    await asyncio.sleep(0.03)
    assert left == ["abort"]
    assert [batch async for batch in queue] == []


# --- 2. and 3. the service


@pytest.mark.parametrize("stream", [False, True])
async def test_facts_of_the_end_are_cut_to_the_tokens_kept(stream: bool) -> None:
    last_word = {"weight_versions": SPANS, "routed_experts": EXPERTS, "kv_transfer_params": {"blk": [1]}}
    engine = ScriptedEngine(script(), last_word=last_word)
    got = await ask(service(engine), stream=stream, routed_experts_format="object")
    choice = got[-1] if stream else got[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "STOP")
    assert [(s.version, s.start, s.end) for s in choice.weight_versions] == [("s1", 0, 1), ("s2", 1, 3)]
    assert choice.routed_experts.shape == [5, 2, 2]  # 3 prompt tokens, 3 kept ones, the last of which went nowhere
    assert [i for part in (got if stream else got[:1]) for i in part.token_ids] == [0, 1, 2]
    if not stream:
        assert got[-1].kv_transfer_params == {"blk": [1]}


async def test_experts_are_cut_too_where_the_end_came_with_the_stop_string() -> None:
    outputs = sequence([0, 1, 2, 3, 4], step_size=5, routed_experts=EXPERTS[:7], weight_versions=SPANS)
    engine = ScriptedEngine(interleave(outputs))
    choice, _ = await ask(service(engine), routed_experts_format="object")
    assert (choice.token_ids, choice.routed_experts.shape[0]) == ([0, 1, 2], 5)


async def test_the_start_of_the_experts_counts() -> None:
    engine = ScriptedEngine(script(), last_word={"routed_experts": EXPERTS[2:]})
    svc = service(engine)
    sampling = {"max_tokens": 50, "stop": ["STOP"], "routed_experts_prompt_start": 2}
    request, _ = codec.convert(
        GenerateRequest,
        {"token_ids": [9, 9, 9], "sampling_params": sampling, "routed_experts_format": "object"},
    )
    reply = await svc.full(await svc.prepare(request, RequestContext()))
    assert reply.choices[0].routed_experts.shape == [3, 2, 2]


WANTING: list[tuple[Capabilities, dict[str, Any], str | None, bool]] = [
    (Capabilities(kv_transfer=True), {}, None, False),
    (Capabilities(kv_transfer=True), {"kv_transfer_params": {"x": 1}}, None, True),
    (Capabilities(ec_transfer=True), {"ec_transfer_params": {"x": 1}}, None, True),
    (Capabilities(routed_experts=True), {}, None, True),
    (LABELS_AT_END, {}, None, True),
    (LABELS_AT_END, {}, "s1", False),
]


@pytest.mark.parametrize(("capabilities", "fields", "label", "waits"), WANTING)
async def test_it_is_waited_for_only_where_it_tells_something_that_is_wanted(
    capabilities: Capabilities, fields: dict[str, Any], label: str | None, waits: bool
) -> None:
    steps = script()
    for step in steps:
        step.outputs[0] = msgspec.structs.replace(step.outputs[0], weight_version=label)
    engine = ScriptedEngine(steps, capabilities=capabilities, last_word={"ec_transfer_params": {"told": True}})
    *_, reply = await ask(service(engine), **fields)
    assert (reply.ec_transfer_params == {"told": True}) is waits
    assert len(engine.stopped) == 1


async def test_other_choices_go_on_while_one_waits() -> None:
    engine = ScriptedEngine(script(n=3), last_word={"weight_versions": SPANS})
    *choices, _ = await ask(service(engine), n=3)
    assert [choice.token_ids for choice in choices] == [[0, 1, 2], [0, 1, 3, 4, 5], [0, 1, 3, 4, 5]]
    assert [choice.finish_reason for choice in choices] == ["stop", "length", "length"]
    assert choices[0].weight_versions[-1].end == 3


# --- 4. over a worker


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_the_last_word_of_a_worker_is_its_answer_to_an_abort(streamed: bool, n: int) -> None:
    def slow(asked: EngineRequest) -> list[Step]:
        return interleave(sequence([0, 1, 2, 3, 4, 5] * 50, finish_reason=None), delay_s=0.01)

    scripted = ScriptedEngine(slow, last_word={"weight_versions": SPANS, "kv_transfer_params": {"blk": [7]}})
    asked = {**body(max_tokens=400, stop=["STOP"], n=n), "kv_transfer_params": {"do": True}, "stream": streamed}
    for msgpack in (False, True):
        async with worker(scripted) as url, remote(url, prefer_msgpack=msgpack) as engine:
            assert engine.info.capabilities.weight_versions_at_end is not msgpack
            app = app_of(engine)
            app.state.server.generate.text = app.state.server.generate.preparer.text = TokenizerText(
                ByteTokens(TOKENS, ())
            )
            async with client_of(app) as client:
                reply = await client.post("/inference/v1/generate", json=asked)
            assert reply.status_code == 200, reply.text
            assert reply.text.count('{"version":"s2","start":1,"end":3}') == n
            assert '"kv_transfer_params":{"blk":[7]}' in reply.text
            await until(lambda: scripted.num_live == 0)


async def test_a_worker_that_dies_before_its_last_word_costs_nothing_but_that() -> None:
    scripted = ScriptedEngine(script(delay_s=0.01), last_word={})
    async with worker(scripted) as url, remote(url, prefer_msgpack=False) as engine:
        outputs = engine.generate(
            EngineRequest(
                request_id="r",
                prompt_token_ids=[1],
                sampling=codec.convert(GenerateRequest, body(max_tokens=50))[0].sampling_params,
                stream=True,
            )
        )
        await anext(outputs)
        outputs.stop(0, 5.0)
        scripted.die()
        async with asyncio.timeout(2):
            rest = [output async for batch in outputs for output in batch]
    assert [output.finish_reason for output in rest] == ["abort"]
