"""The null engine: (1) it makes the ids it promises with the logprobs it promises, streamed or whole; (2) n sequences
get the same ids; (3) abort ends a request with reason "abort"; (4) leaving a stream forgets the request; (5) a pause
that keeps requests freezes them until resume, one that waits takes nothing new and ends with the last of them or with
resume; (6) a closed engine takes nothing."""

import asyncio
from contextlib import aclosing

import pytest

from tokenwire.engine.base import EngineOutput, EngineRequest, EngineStatus
from tokenwire.engine.control import Pause, Resume
from tokenwire.engine.null import NullEngine, NullEngineOptions
from tokenwire.errors import EngineUnavailableError
from tokenwire.wire.sampling import SamplingParams


def request(name: str = "r", *, stream: bool = True, **sampling: object) -> EngineRequest:
    return EngineRequest(
        request_id=name, prompt_token_ids=[1, 2, 3], sampling=SamplingParams(**sampling), stream=stream
    )


async def outputs_of(engine: NullEngine, req: EngineRequest) -> list[EngineOutput]:
    return [output async for batch in engine.generate(req) for output in batch]


@pytest.fixture
async def engine():
    engine = NullEngine(NullEngineOptions())
    await engine.start()
    yield engine
    await engine.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_ids_and_logprobs_are_as_promised(engine, stream):
    outputs = await outputs_of(engine, request(stream=stream, max_tokens=200, logprobs=2))
    assert [t for o in outputs for t in o.token_ids] == list(range(1000, 1200))
    rows = [
        row for o in outputs for row in zip(o.logprobs.token_ids.tolist(), o.logprobs.logprobs.tolist(), strict=True)
    ]
    assert rows[0] == ([1000, 1000, 1001], [-0.5, -0.5, -1.5])
    assert rows[199] == ([1199, 1199, 1200], [-0.5, -0.5, -1.5])
    assert [o.finish_reason for o in outputs if o.finish_reason] == ["length"]
    assert [o.prompt is not None for o in outputs].count(True) == 1


async def test_every_sequence_gets_its_tokens_and_one_finish_reason(engine):
    outputs = await outputs_of(engine, request(max_tokens=3, n=2))
    for index in (0, 1):
        mine = [o for o in outputs if o.index == index]
        assert [t for o in mine for t in o.token_ids] == [1000, 1001, 1002]
        assert [o.finish_reason for o in mine][-1] == "length"


async def test_abort_ends_the_stream_with_what_it_had(engine):
    stream = engine.generate(request(max_tokens=10**6))
    await anext(stream)
    assert await engine.abort(["r", "unknown"]) == ["r"]
    rest = [output async for batch in stream for output in batch]
    assert rest[-1].finish_reason == "abort"


async def test_leaving_a_stream_forgets_the_request(engine):
    async with aclosing(engine.generate(request(max_tokens=10**6))) as stream:
        await anext(stream)
        assert (await engine.stats()).num_running == 1
    assert (await engine.stats()).num_running == 0


async def test_a_keeping_pause_freezes_until_resume(engine):
    await engine.control(Pause(mode="keep"))
    task = asyncio.create_task(outputs_of(engine, request(max_tokens=4)))
    await asyncio.sleep(0.02)
    assert not task.done()
    await engine.control(Resume())
    assert [t for o in await task for t in o.token_ids] == [1000, 1001, 1002, 1003]


async def test_a_waiting_pause_takes_nothing_new_and_ends_when_all_have_finished(engine):
    stream = engine.generate(request(max_tokens=10**6))
    await anext(stream)
    await engine.control(Pause(mode="keep"))
    pausing = asyncio.create_task(engine.control(Pause(mode="wait")))
    await asyncio.sleep(0)
    assert engine.status is EngineStatus.PAUSED
    with pytest.raises(EngineUnavailableError):
        engine.generate(request("new"))
    await anext(stream)
    assert not pausing.done()
    await stream.aclose()
    await asyncio.wait_for(pausing, 1.0)
    assert engine.status is EngineStatus.PAUSED


@pytest.mark.parametrize("closed", [False, True])
async def test_a_waiting_pause_says_when_it_was_overtaken(engine, closed):
    async with aclosing(engine.generate(request(max_tokens=10**6))) as stream:
        await anext(stream)
        pausing = asyncio.create_task(engine.control(Pause(mode="wait")))
        await asyncio.sleep(0)
        await (engine.close() if closed else engine.control(Resume()))
    with pytest.raises(EngineUnavailableError):
        await asyncio.wait_for(pausing, 1.0)
    assert engine.status is (EngineStatus.DEAD if closed else EngineStatus.READY)
    if closed:
        with pytest.raises(EngineUnavailableError):
            engine.generate(request("late"))
