"""Replicas behind one engine: (1) a rank wins, then the session's replica, then the least loaded, equals take turns;
(2) a session moves when its replica is down, and stays where it moved; (3) sessions take bounded memory and processes
that share it agree; (4) abort, control and stats are everybody's, a probe is of the replica that then runs the
request; (5) one that is down is avoided, the engine serves while one does; (6) a replica that dies under a control
message is told again, a dead one is left out; (7) what cannot start leaves nothing running."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tokenwire.engine.base import EngineInfo, EngineOutput, EngineRequest, EngineStats, EngineStatus, KVTransferStats
from tokenwire.engine.control import Control, Pause, ResetPrefixCache, Resume
from tokenwire.engine.null import NullEngine, NullEngineOptions
from tokenwire.engine.replicas import ReplicaEngine, Sessions, total
from tokenwire.errors import EngineDeadError, EngineUnavailableError, InvalidRequestError
from tokenwire.wire.sampling import SamplingParams


class Replica(NullEngine):
    """A null engine that can be down, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(NullEngineOptions(step_s=0.001))
        self.asked: list[str] = []
        self.told: list[Control] = []
        self.probed: list[str] = []
        self.down: EngineStatus | None = None
        self.dies_as: EngineStatus | None = None
        self.fails_to_start = False

    @property
    def status(self) -> EngineStatus:
        return self.down or super().status

    async def start(self) -> None:
        if self.fails_to_start:
            raise EngineUnavailableError("no model here")
        await super().start()

    def generate(self, request: EngineRequest) -> Any:
        self.asked.append(request.request_id)
        return super().generate(request)

    async def cached_prefix_len(self, request: EngineRequest) -> int:
        self.probed.append(request.request_id)
        return len(self.probed)

    async def control(self, message: Control) -> dict[str, Any]:
        if self.dies_as is not None:
            self.down, self.dies_as = self.dies_as, None
            raise EngineUnavailableError("died")
        self.told.append(message)
        return (
            {"success": self.down is None} if isinstance(message, ResetPrefixCache) else await super().control(message)
        )


def request(name: str, max_tokens: int = 10_000, **more: Any) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens)
    return EngineRequest(request_id=name, prompt_token_ids=[1], sampling=sampling, stream=True, **more)


@pytest.fixture
async def replicas():
    made = [Replica() for _ in range(3)]
    for replica in made:
        await replica.start()
    yield made
    for replica in made:
        await replica.close()


def asked(replicas: list[Replica]) -> list[list[str]]:
    return [replica.asked for replica in replicas]


async def test_a_rank_wins_then_the_session_then_the_least_loaded(replicas: list[Replica]) -> None:
    engine = ReplicaEngine(replicas)
    engine.generate(request("pinned", data_parallel_rank=2, session_id="s"))
    assert asked(replicas) == [[], [], ["pinned"]]
    engine.generate(request("first", session_id="s"))
    engine.generate(request("second", session_id="t"))
    engine.generate(request("third", session_id="s"))
    engine.generate(request("loose"))
    assert asked(replicas) == [["first", "third"], ["second", "loose"], ["pinned"]]


async def test_equals_take_turns(replicas: list[Replica]) -> None:
    engine = ReplicaEngine(replicas)
    for number in range(6):
        async for _ in engine.generate(request(str(number), 1)):
            pass
    assert asked(replicas) == [["0", "3"], ["1", "4"], ["2", "5"]]


@pytest.mark.parametrize("rank", [-1, 3])
async def test_a_rank_that_is_not_there_is_refused(replicas: list[Replica], rank: int) -> None:
    with pytest.raises(InvalidRequestError, match="from 0 to 2"):
        ReplicaEngine(replicas).generate(request("r", data_parallel_rank=rank))


async def test_a_session_moves_when_its_replica_is_down_and_stays_where_it_moved(replicas: list[Replica]) -> None:
    engine = ReplicaEngine(replicas)
    engine.generate(request("a", session_id="s"))
    replicas[0].down = EngineStatus.RESTARTING
    engine.generate(request("b", session_id="s"))
    replicas[0].down = None
    engine.generate(request("c", session_id="s"))
    assert asked(replicas) == [["a"], ["b", "c"], []]


async def test_sessions_are_bounded_and_processes_that_share_them_agree(replicas: list[Replica]) -> None:
    memory = bytearray(64)
    here, there = ReplicaEngine(replicas, Sessions(memory)), ReplicaEngine(replicas, Sessions(memory))
    for number in range(500):
        here.generate(request(f"here-{number}", session_id=f"s{number}"))
    assert len(memory) == 64
    before = [set(replica.asked) for replica in replicas]
    for number in range(500):
        there.generate(request(f"there-{number}", session_id=f"s{number}"))
    for replica, known in zip(replicas, before, strict=True):
        assert {name.replace("there", "here") for name in replica.asked} == known


async def test_abort_stats_and_control_are_everybodys(replicas: list[Replica]) -> None:
    engine = ReplicaEngine(replicas)
    streams = [engine.generate(request(str(number))) for number in range(6)]
    assert (await engine.stats()).num_running == 6
    assert sorted(await engine.abort(["1", "2", "unknown"])) == ["1", "2"]
    await engine.control(Pause(mode="keep"))
    assert engine.status is EngineStatus.FROZEN
    await engine.control(Resume())
    assert engine.status is EngineStatus.READY
    assert await engine.control(ResetPrefixCache()) == {"success": True}
    replicas[1].down = EngineStatus.RESTARTING
    assert await engine.control(ResetPrefixCache()) == {"success": False}
    await engine.close()
    for number, stream in enumerate(streams):
        outputs: list[EngineOutput] = []
        if number in (1, 2):
            outputs += [output async for batch in stream for output in batch]
            assert outputs[-1].finish_reason == "abort"
        else:
            with pytest.raises(EngineUnavailableError):
                outputs += [output async for batch in stream for output in batch]


async def test_a_probe_settles_where_the_request_runs(replicas: list[Replica]) -> None:
    engine = ReplicaEngine(replicas)
    assert await engine.cached_prefix_len(request("r")) == 1
    for number in range(2):
        engine.generate(request(f"other-{number}"))
    engine.generate(request("r"))
    (probed,) = [replica for replica in replicas if replica.probed]
    assert "r" in probed.asked


async def test_one_that_is_down_is_avoided_and_the_engine_serves_while_one_does(replicas: list[Replica]) -> None:
    engine = ReplicaEngine(replicas)
    replicas[0].down, replicas[2].down = EngineStatus.RESTARTING, EngineStatus.DEAD
    for number in range(4):
        engine.generate(request(str(number)))
    assert asked(replicas) == [[], ["0", "1", "2", "3"], []]
    assert engine.status is EngineStatus.READY
    replicas[1].down = EngineStatus.DEAD
    assert engine.status is EngineStatus.RESTARTING
    replicas[0].down = EngineStatus.DEAD
    assert engine.status is EngineStatus.DEAD
    with pytest.raises(EngineDeadError):
        await engine.control(Resume())


async def test_a_replica_that_dies_under_a_message_is_told_again_a_dead_one_is_left_out(
    replicas: list[Replica],
) -> None:
    engine = ReplicaEngine(replicas)
    replicas[0].dies_as, replicas[1].dies_as = EngineStatus.RESTARTING, EngineStatus.DEAD
    await engine.control(Pause())
    assert [len(replica.told) for replica in replicas] == [1, 0, 1]


async def test_what_cannot_start_leaves_nothing_running() -> None:
    made = [Replica() for _ in range(2)]
    made[1].fails_to_start = True
    with pytest.raises(EngineUnavailableError, match="no model here"):
        await ReplicaEngine(made).start()
    await asyncio.sleep(0)
    assert [replica.status for replica in made] == [EngineStatus.DEAD, EngineStatus.DEAD]


def test_figures_are_sums_and_shares_are_means() -> None:
    one = EngineStats(num_running=1, kv_cache_usage=0.5, accepted_per_position=(1, 2))
    moved = KVTransferStats(pulls=1, fallbacks={"gone": 2})
    other = EngineStats(num_running=2, num_waiting=3, accepted_per_position=(5,), kv_transfer=moved)
    third = EngineStats(kv_transfer=KVTransferStats(pulls=2, fallbacks={"gone": 1, "late": 1}))
    assert total([one, other, third]) == EngineStats(
        num_running=3,
        num_waiting=3,
        kv_cache_usage=0.5 / 3,
        accepted_per_position=(6, 2),
        kv_transfer=KVTransferStats(pulls=3, fallbacks={"gone": 3, "late": 1}),
    )


async def test_the_engine_says_how_many_replicas_it_has(replicas: list[Replica]) -> None:
    info: EngineInfo = ReplicaEngine(replicas).info
    assert (info.capabilities.data_parallel_size, info.max_num_seqs) == (3, replicas[0].info.max_num_seqs)
