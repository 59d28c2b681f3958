"""Data parallelism: engines of one model behind the engine interface, each with a cache and requests of its own.

A request runs on the replica that its rank names; else where its session ran before, for the sake of the prefix
cache; else on the least loaded one. What is asked of the engine as a whole goes to all. A replica that dies fails
its own streams only; new requests avoid it until it is back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tokenwire.engine.base import Engine, EngineInfo, EngineRequest, EngineStats, EngineStatus, OutputStream
from tokenwire.engine.control import Control
from tokenwire.errors import EngineDeadError, InvalidRequestError, ServiceError

T = TypeVar("T")

SESSION_BYTES = 1 << 20
"""Size of the table of sessions, which is all the memory that they take."""
MAX_PROBED = 1024
_BEST_FIRST = (
    EngineStatus.READY,
    EngineStatus.FROZEN,
    EngineStatus.PAUSED,
    EngineStatus.RESTARTING,
    EngineStatus.STARTING,
    EngineStatus.DEAD,
)

_GONE = (EngineStatus.RESTARTING, EngineStatus.DEAD)


class Memory(Protocol):
    """Bytes: a bytearray, or a view of memory that others see."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class Sessions:
    """Where each session ran last: one byte by the hash of its id, 0 for nowhere yet.

    Sessions that share a byte share a replica, which costs nothing but balance. Several processes may share the
    `memory`; then a session has one replica whichever of them it comes to.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._ranks: Memory = bytearray(SESSION_BYTES) if memory is None else memory

    def get(self, session_id: str) -> int | None:
        stored = self._ranks[self._place(session_id)]
        return stored - 1 if stored else None

    def put(self, session_id: str, rank: int) -> None:
        self._ranks[self._place(session_id)] = rank + 1

    def _place(self, session_id: str) -> int:
        digest = hashlib.blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest) % len(self._ranks)


class ReplicaEngine(Engine):
    """Implements `Engine` over engines that serve the same model with the same options; the index is the rank."""

    def __init__(self, replicas: Sequence[Engine], sessions: Sessions | None = None, *, first: int = 0) -> None:
        """`first` takes the first request: several front ends of the same replicas begin with different ones."""
        self._replicas = tuple(replicas)
        self._sessions = sessions or Sessions()
        self._next = first % len(replicas)
        """Who is first among equals."""
        self._info: tuple[EngineInfo, EngineInfo] | None = None
        """What a replica told, and what we make of it: asked for with every request."""
        self._probed: OrderedDict[str, int] = OrderedDict()
        """Ranks whose cache was looked at for a request that is to come."""

    @property
    def replicas(self) -> Sequence[Engine]:
        return self._replicas

    @property
    def info(self) -> EngineInfo:
        told = self._replicas[0].info
        if self._info is None or self._info[0] is not told:
            capabilities = dataclasses.replace(told.capabilities, data_parallel_size=len(self._replicas))
            self._info = told, dataclasses.replace(told, capabilities=capabilities)
        return self._info[1]

    @property
    def status(self) -> EngineStatus:
        """That of the best replica: while one serves, the engine does."""
        return min((replica.status for replica in self._replicas), key=_BEST_FIRST.index)

    @property
    def load(self) -> int:
        return sum(replica.load for replica in self._replicas)

    async def start(self) -> None:
        try:
            await _all(replica.start() for replica in self._replicas)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await _all(replica.close() for replica in self._replicas)

    def generate(self, request: EngineRequest) -> OutputStream:
        rank = self._probed.pop(request.request_id, None)
        if rank is None or self._replicas[rank].status is not EngineStatus.READY:
            rank = self._choose(request)
        self._next = (rank + 1) % len(self._replicas)
        return self._replicas[rank].generate(request)

    async def abort(self, request_ids: Iterable[str]) -> list[str]:
        wanted = list(request_ids)
        found = await asyncio.gather(*(replica.abort(wanted) for replica in self._replicas), return_exceptions=True)
        ended: list[str] = []
        for ids in found:
            if isinstance(ids, list):
                ended += ids
            elif not isinstance(ids, ServiceError):  # a replica that died under the question has ended its requests
                raise ids
        return ended

    async def stats(self) -> EngineStats:
        return total([await replica.stats() for replica in self._replicas])

    async def cached_prefix_len(self, request: EngineRequest) -> int:
        """Of the replica that takes the request; when it comes, it goes there."""
        rank = self._choose(request)
        held = await self._replicas[rank].cached_prefix_len(request)
        self._probed[request.request_id] = rank
        if len(self._probed) > MAX_PROBED:
            self._probed.popitem(last=False)
        return held

    async def control(self, message: Control) -> dict[str, Any]:
        answers = await _all(_tell(replica, message) for replica in self._replicas)
        obeyed = [answer for answer in answers if answer is not None]
        if not obeyed:
            raise EngineDeadError("The engine is not running.")
        return merge_facts(obeyed)

    # --- which replica

    def _choose(self, request: EngineRequest) -> int:
        size = len(self._replicas)
        rank = request.data_parallel_rank
        if rank is not None:
            if not 0 <= rank < size:
                raise InvalidRequestError(f"data_parallel_rank must be from 0 to {size - 1}, got {rank}.")
            return rank
        best = self.status
        able = [rank for rank in range(size) if self._replicas[rank].status is best]
        session = request.session_id
        kept = None if session is None else self._sessions.get(session)
        if kept is not None and kept in able:
            return kept
        rank = min(able, key=lambda rank: (self._replicas[rank].load, (rank - self._next) % size))
        if session is not None and best in (EngineStatus.READY, EngineStatus.FROZEN):
            self._sessions.put(session, rank)
        return rank


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order, once all have ended; raises the first error among them."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def _tell(replica: Engine, message: Control) -> dict[str, Any] | None:
    """None: the replica is dead. One that dies under the message is told again: it keeps it for its return."""
    for is_last in (False, True):
        if replica.status is EngineStatus.DEAD:
            return None
        try:
            return await replica.control(message)
        except ServiceError:
            if is_last or replica.status not in _GONE:
                raise
    return None


def merge_facts(answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several answers to one control message as one: lists joined, `success` only if all had it, else the first's."""
    facts: dict[str, Any] = {}
    for answer in answers:
        for name, value in answer.items():
            if name in facts and isinstance(value, list) and isinstance(facts[name], list):
                facts[name] = facts[name] + value
            elif name == "success":
                facts[name] = bool(value) and facts.get(name, True)
            else:
                facts.setdefault(name, value)
    return facts


def total(stats: Sequence[EngineStats]) -> EngineStats:
    """Numbers of several engines as one's: sums, and the mean of the shares."""
    summed: EngineStats = _sum(stats)
    return dataclasses.replace(summed, kv_cache_usage=summed.kv_cache_usage / len(stats))


def _sum(values: Sequence[Any]) -> Any:
    """Of numbers; of rows by place, of maps by key, of records by field. What is None counts for nothing."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    first = there[0]
    if isinstance(first, tuple):
        return tuple(sum(column) for column in itertools.zip_longest(*there, fillvalue=0))
    if isinstance(first, dict):
        return {key: sum(value.get(key, 0) for value in there) for key in {key for value in there for key in value}}
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        fields = [f.name for f in dataclasses.fields(first)]
        return type(first)(**{name: _sum([getattr(value, name) for value in there]) for name in fields})
    return sum(there)
