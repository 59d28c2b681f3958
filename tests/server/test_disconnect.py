"""A client that leaves, on real sockets: (1) its request is aborted once, within a step, streamed or not, before or
after the first token, whatever n; (2) fifty at once leave nothing behind; (3) nobody gets another's tokens; (4) a slow
reader slows only itself and costs no task or queue; (5) a cut-off body never reaches the engine."""

import asyncio
import random

import httpx
import pytest

from tests.support.http import GENERATE, RawClient, app_of, body, events_of, serving, until
from tests.support.scripted_engine import ScriptedEngine, Step, counting
from tokenwire.engine.base import EngineOutput


def lazily(request, delay_s=0.0):
    """One id a step from 1000 on, made only when its step comes."""
    for i in range(request.sampling.max_tokens):
        last = "length" if i == request.sampling.max_tokens - 1 else None
        outputs = [EngineOutput(n, [1000 + i], finish_reason=last) for n in range(request.sampling.n)]
        yield Step(outputs, delay_s)


def slow(request):
    return lazily(request, delay_s=0.01)


def quiet(server):
    return not server.generate.live_ids() and server.live.num_live == 0


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("before_first_token", [True, False])
async def test_leaving_aborts_the_request_once(n, stream, before_first_token):
    engine = ScriptedEngine(slow, gate=before_first_token, max_model_len=20000)
    app = app_of(engine)
    async with serving(app) as port:
        client = await RawClient.open(port)
        await client.post(body(stream=stream, n=n, max_tokens=10000))
        await until(lambda: engine.requests)
        if before_first_token:
            await asyncio.sleep(0.02)
        elif stream:
            for _ in range(3 * n):
                await client.read_until(b"\n\n")
        else:
            await asyncio.sleep(0.05)
        client.drop()
        await until(lambda: engine.aborted and engine.num_live == 0)
        await until(lambda: quiet(app.state.server))
    assert engine.aborted == [engine.requests[0].request_id]


@pytest.mark.parametrize("stream", [True, False])
async def test_fifty_leaving_at_once_leave_nothing_behind(stream):
    engine = ScriptedEngine(slow, max_model_len=20000)
    app = app_of(engine)
    async with serving(app) as port:
        tasks_before = len(asyncio.all_tasks())
        clients = [await RawClient.open(port) for _ in range(50)]
        for client in clients:
            await client.post(body(stream=stream, max_tokens=10000))
        await until(lambda: len(engine.requests) == 50, 5)
        for client in clients:
            client.drop()
        await until(lambda: engine.num_live == 0 and quiet(app.state.server))
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
    assert len(engine.aborted) == len(set(engine.aborted)) == 50


async def test_half_of_many_leave_and_the_others_get_their_own_tokens():
    engine = ScriptedEngine(lambda request: counting(request, delay_s=0.002), max_num_seqs=1000)
    app = app_of(engine)
    rng = random.Random(7)

    async def leaver(port, length):
        client = await RawClient.open(port)
        await client.post(body(list(range(1, length + 1)), stream=True, max_tokens=40))
        for _ in range(rng.randrange(5)):
            await client.read_until(b"\n\n")
        client.drop()

    async def stayer(http, length):
        reply = await http.post(GENERATE, json=body(list(range(1, length + 1)), stream=True, max_tokens=40))
        return [t for e in events_of(reply.text) for t in e["choices"][0]["token_ids"]]

    async with serving(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        lengths = range(1, 61)
        results = await asyncio.gather(
            *(stayer(http, length) if length % 2 else leaver(port, length) for length in lengths)
        )
        await until(lambda: engine.num_live == 0 and quiet(app.state.server))
    for length, ids in zip(lengths, results, strict=True):
        assert ids is None or ids == [1000 + length + i for i in range(40)]


async def test_a_slow_reader_slows_only_itself():
    engine = ScriptedEngine(lazily, max_model_len=200_000)
    app = app_of(engine)
    async with serving(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        slow_one = await RawClient.open(port, limit=1024)
        await slow_one.post(body(stream=True, max_tokens=20_000))
        await slow_one.read_until(b"\n\n")
        reply = await http.post(GENERATE, json=body([1, 2], stream=True, max_tokens=50))
        assert len(events_of(reply.text)) == 50
        await until(lambda: engine.num_live == 0, 10)  # the engine does not wait for the slow reader
        assert app.state.server.live.num_live == 1
        slow_one.drop()
        await until(lambda: quiet(app.state.server))


async def test_a_slow_reader_gets_everything_in_the_end():
    engine = ScriptedEngine(lazily, max_model_len=200_000)
    app = app_of(engine)
    async with serving(app) as port:
        client = await RawClient.open(port, limit=1 << 26)
        await client.post(body(stream=True, max_tokens=5000))
        await asyncio.sleep(0.3)
        raw = await client.read_until(b"[DONE]\n\n")
        client.drop()
    text = raw.split(b"\r\n\r\n", 1)[1].decode()
    ids = [int(part.split("]", 1)[0]) for part in _token_lists(text)]
    assert ids == [1000 + i for i in range(5000)]


def _token_lists(text):
    """Ids in order; events that were merged for the slow reader hold several."""
    for part in text.split('"token_ids":[')[1:]:
        yield from (f"{token}]" for token in part.split("]", 1)[0].split(","))


async def test_a_body_that_is_cut_off_never_reaches_the_engine():
    engine = ScriptedEngine()
    app = app_of(engine)
    async with serving(app) as port:
        client = await RawClient.open(port)
        head = f"POST {GENERATE} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
        client.writer.write(head.encode() + b'{"token_ids": [1')
        await client.writer.drain()
        await asyncio.sleep(0.05)
        client.drop()
        await asyncio.sleep(0.05)
    assert engine.requests == []


async def test_a_kept_connection_serves_one_request_after_another():
    engine = ScriptedEngine()
    app = app_of(engine)
    async with serving(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        for stream in (True, False, True, False):
            reply = await http.post(GENERATE, json=body(stream=stream, max_tokens=3))
            assert reply.status_code == 200
    assert engine.aborted == []
