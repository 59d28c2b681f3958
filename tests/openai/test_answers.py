"""Work that runs side by side for one answer, and what the answering layer does around it.

1. `all_of`: results in order; the first failure cancels the rest and comes out as it is.
2. `side_by_side`: everything of every stream, each in its order; a failure or closing ends all; a slow reader
   holds all.
3. A client that leaves a completion of several prompts aborts each of them once.
4. Request logs tell the ids of every road; `/load` counts the ordinary endpoints.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.openai.scripted import CHAT, COMPLETION, HI, MESSAGES, front, ids_of, says, streamed, whole
from tests.support.http import RawClient, client_of, serving, until
from tests.support.scripted_engine import one_sequence
from tokenwire.errors import GenerationError
from tokenwire.service.answers import QUEUED_BATCHES, all_of, side_by_side


class Counter:
    """A stream of numbers that tells how far it got and whether it was closed."""

    def __init__(self, count: int, *, fails: bool = False) -> None:
        self.count, self.fails = count, fails
        self.given = 0
        self.closed = False

    async def __call__(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.count):
                self.given += 1
                yield number
                await asyncio.sleep(0)
            if self.fails:
                raise GenerationError("broken")
        finally:
            self.closed = True


# --- 1. all_of


async def test_results_come_in_order() -> None:
    async def after(delay_s: float, value: int) -> int:
        await asyncio.sleep(delay_s)
        return value

    assert await all_of([after(0.02, 1), after(0, 2), after(0.01, 3)]) == [1, 2, 3]


async def test_the_first_failure_cancels_the_rest() -> None:
    cancelled = []

    async def waits() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise GenerationError("broken")

    with pytest.raises(GenerationError, match="broken"):
        await all_of([waits(), fails(), waits()])
    assert len(cancelled) == 2


# --- 2. side_by_side


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_streams_are_complete_and_each_in_its_order(counts: list[int]) -> None:
    async def run() -> None:
        got: list[list[int]] = [[] for _ in counts]
        async for number, item in side_by_side([Counter(count)() for count in counts]):
            got[number].append(item)
        assert got == [list(range(count)) for count in counts]

    asyncio.run(run())


async def test_a_failing_stream_ends_all_at_once() -> None:
    forever, broken = Counter(10**9), Counter(3, fails=True)
    with pytest.raises(GenerationError, match="broken"):
        async for _ in side_by_side([forever(), broken()]):
            pass
    assert forever.closed
    assert forever.given < 100


async def test_closing_closes_every_stream() -> None:
    streams = [Counter(10**9), Counter(10**9)]
    async with aclosing(side_by_side([stream() for stream in streams])) as merged:
        await anext(merged)
    assert [stream.closed for stream in streams] == [True, True]


async def test_a_slow_reader_holds_the_streams_back() -> None:
    streams = [Counter(10**9), Counter(10**9)]
    async with aclosing(side_by_side([stream() for stream in streams])) as merged:
        await anext(merged)
        await asyncio.sleep(0.05)
        assert sum(stream.given for stream in streams) <= QUEUED_BATCHES + 1 + len(streams)


# --- 3. leaving


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_aborts_every_prompt_once(stream: bool) -> None:
    app, engine = front(one_sequence(ids_of("word " * 100), delay_s=0.01))
    async with serving(app) as port:
        client = await RawClient.open(port)
        await client.post({"prompt": ["a", "b", "c"], "max_tokens": 200, "stream": stream}, COMPLETION)
        await until(lambda: len(engine.requests) == 3)
        await asyncio.sleep(0.05)
        client.drop()
        await until(lambda: len(engine.aborted) == 3 and engine.num_live == 0)
        assert app.state.server.generate.live_ids() == []
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)


# --- 4. logs, load


async def test_logs_tell_the_ids_of_whole_replies_and_streams(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = front(says("Hello"), enable_log_requests=True, enable_log_outputs=True)
    chat = {"messages": HI, "max_tokens": 9}
    with caplog.at_level(logging.INFO, "tokenwire.requests"):
        await whole(app, CHAT, chat)
        await streamed(app, CHAT, chat)
        await whole(app, COMPLETION, {"prompt": "a"})
        await whole(app, MESSAGES, {"model": "m", **chat})
    outputs = [message for message in caplog.messages if message.startswith("Output of")]
    assert [message.split("_")[0].split("-")[0] for message in outputs if str(ids_of("Hello")[0]) in message] == [
        "Output of 'chatcmpl",
        "Output of 'chatcmpl",
        "Output of 'cmpl",
        "Output of 'msg",
    ]
    assert "Hello" not in "".join(caplog.messages)


async def test_load_counts_chats() -> None:
    app, engine = front(one_sequence(ids_of("word " * 5), delay_s=0.05), enable_server_load_tracking=True)
    async with client_of(app) as client:
        asking = asyncio.create_task(client.post(CHAT, json={"messages": HI}))
        await until(lambda: engine.requests)
        assert (await client.get("/load")).json()["server_load"] == 1
        await asking
        assert (await client.get("/load")).json()["server_load"] == 0
