"""Several front ends on one core: (1) each gets its own outputs, also with equal handles, and all know of a pause;
(2) one that dies is forgotten: its requests end, the others' go on, and what comes of it still is dropped; (3) one that
closes lets the core live; (4) a core that is started again serves all of them, paused if it was; (5) the load is of
all, each of them counted once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.engine.harness import CLIENT, Harness
from tests.engine.test_process import PROMPT, options, read, request
from tokenwire.engine.base import EngineStatus
from tokenwire.engine.control import Pause, Resume
from tokenwire.engine.local import LocalEngine
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local.keeper import CoreKeeper, CoreNews, ToldCore
from tokenwire.engine.local.link import FrontLink, new_identity
from tokenwire.errors import EngineUnavailableError


class Shared:
    """A core that is kept here, and two engines that are told of it."""

    def __init__(self, folder: Path) -> None:
        self.keeper = CoreKeeper(options(folder, restarts=1))
        self.told = [ToldCore(), ToldCore()]
        self.identities = [new_identity(), new_identity()]
        self.engines = [
            LocalEngine(source=core, identity=identity)
            for core, identity in zip(self.told, self.identities, strict=True)
        ]
        self.address = ""

    async def start(self) -> None:
        self.address = await self.keeper.first()
        for core in self.told:
            core.tell(CoreNews(address=self.address))
        await asyncio.gather(*(engine.start() for engine in self.engines))

    async def pass_on(self) -> None:
        """The next news of the core, to both."""
        news = await self.keeper.next()
        for core in self.told:
            core.tell(news)


@pytest.fixture
async def shared(folders: dict[str, Path]) -> AsyncIterator[Shared]:
    made = Shared(folders["llama"])
    await made.start()
    yield made
    for engine in made.engines:
        await engine.close()
    await made.keeper.close()


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  what is watched has no event
            await asyncio.sleep(0.005)


async def test_each_gets_its_own_and_all_know_of_a_pause(shared: Shared) -> None:
    here, there = shared.engines
    first, second = await asyncio.gather(
        read(here, request("a", max_tokens=5)), read(there, request("a", prompt=[9], max_tokens=7))
    )
    assert (len(first.token_ids), len(second.token_ids)) == (5, 7)
    assert await here.abort(["nothing of ours"]) == []
    await there.control(Pause(mode="abort"))
    await until(lambda: here.status is EngineStatus.PAUSED)
    with pytest.raises(EngineUnavailableError):
        here.generate(request("refused"))
    await here.control(Resume())
    await until(lambda: there.status is EngineStatus.READY)


async def test_the_load_counts_what_is_ours_at_once_and_the_others_once(shared: Shared) -> None:
    here, there = shared.engines
    await here.control(Pause(mode="keep"))
    await until(lambda: there.status is EngineStatus.FROZEN)
    streams = [here.generate(request(str(n))) for n in range(3)]
    assert here.load == 3
    streams += [there.generate(request("theirs", n=2, temperature=1.0))]
    await until(lambda: (here.load, there.load) == (5, 5))
    await there.control(Resume())
    for stream in streams:
        async for _ in stream:
            pass
    await until(lambda: (here.load, there.load) == (0, 0))


async def test_one_that_dies_is_forgotten_and_the_others_go_on(shared: Shared) -> None:
    here, there = shared.engines
    lost = [here.generate(request(str(n), prompt=[*PROMPT, n], max_tokens=100)) for n in range(4)]
    kept = there.generate(request("kept", max_tokens=100))
    await anext(kept)
    starter = FrontLink(shared.address, lambda message: None)
    starter.send(wire.Forget(shared.identities[0]))
    outputs = [output async for batch in kept for output in batch]
    assert outputs[-1].finish_reason == "length"
    here.generate(request("too late", max_tokens=100))
    assert len((await read(there, request("next", max_tokens=3))).token_ids) == 3
    stats = await there.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)
    assert all(not stream.done for stream in lost)  # type: ignore[attr-defined]  # nobody told it anything more
    starter.close()


async def test_one_that_closes_lets_the_core_live(shared: Shared) -> None:
    here, there = shared.engines
    here.generate(request("left", max_tokens=100))
    await here.close()
    assert len((await read(there, request("next"))).token_ids) == 8
    assert (await there.stats()).num_running == 0


@pytest.mark.parametrize("paused", [False, True])
async def test_a_core_that_is_started_again_serves_all(shared: Shared, *, paused: bool) -> None:
    here, there = shared.engines
    if paused:
        await here.control(Pause(mode="abort"))
        await until(lambda: there.status is EngineStatus.PAUSED)
    assert shared.keeper.pid is not None
    os.kill(shared.keeper.pid, signal.SIGKILL)
    await shared.pass_on()
    await until(lambda: {e.status for e in shared.engines} == {EngineStatus.RESTARTING})
    await shared.pass_on()
    wanted = EngineStatus.PAUSED if paused else EngineStatus.READY
    await until(lambda: {e.status for e in shared.engines} == {wanted})
    if paused:
        await there.control(Resume())
        await until(lambda: here.status is EngineStatus.READY)
    for engine in shared.engines:
        assert len((await read(engine, request("again"))).token_ids) == 8


def test_a_front_end_that_was_forgotten_is_not_heard_any_more(folders: dict[str, Path]) -> None:
    harness = Harness(folders["llama"])
    harness.add([5, 6, 7], max_tokens=50)
    harness.tick()
    harness.tick()
    assert not harness.core.idle
    harness.core.take(b"starter", wire.Forget(CLIENT))
    assert harness.core.idle
    harness.add([5, 6, 7], max_tokens=50)
    harness.tick()
    assert harness.core.idle


def test_a_core_begins_in_the_state_that_its_keeper_tells(folders: dict[str, Path]) -> None:
    harness = Harness(folders["llama"])
    harness.core.take(b"starter", wire.Begin("closed"))
    harness.core.take(b"another", wire.Attach("ready"))
    assert harness.core._gauges().state == "closed"
    harness.core.take(CLIENT, wire.ControlCall(1, Resume()))
    harness.core.take(b"starter", wire.Begin("closed"))  # it came late
    assert harness.core._gauges().state == "ready"


async def test_a_front_end_that_starts_while_the_core_is_away_waits(shared: Shared) -> None:
    assert shared.keeper.pid is not None
    told = ToldCore()
    told.tell(CoreNews(address=shared.address))
    os.kill(shared.keeper.pid, signal.SIGKILL)
    died = await shared.keeper.next()
    late = LocalEngine(source=told, identity=new_identity(), state="frozen")
    starting = asyncio.create_task(late.start())
    await asyncio.sleep(0.1)
    told.tell(died)
    await asyncio.sleep(0.1)
    assert not starting.done()
    told.tell(await shared.keeper.next())
    await starting
    await until(lambda: late.status is EngineStatus.FROZEN)
    await late.close()
