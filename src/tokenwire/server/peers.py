"""A front end among others: what it asks them, and what it answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from tokenwire.engine.base import Engine
from tokenwire.engine.replicas import total
from tokenwire.server.channel import (
    AbortAll,
    AbortBatch,
    AbortIds,
    Answer,
    Ask,
    Channel,
    Figures,
    Obey,
    Question,
    TellFigures,
    ToFrontEnd,
)
from tokenwire.server.metrics import Metrics
from tokenwire.service.prepare import ID_PREFIX

if TYPE_CHECKING:
    from tokenwire.server.context import Server


class Peers:
    """This front end's end of the channel, as far as it concerns the others."""

    def __init__(self, channel: Channel[ToFrontEnd], *, share_engine: bool) -> None:
        """`share_engine`: all have the same cores behind them; else each has an engine of its own."""
        self._channel = channel
        self._calls: dict[int, asyncio.Future[list[Any]]] = {}
        self._next_call = 0
        self._answering: set[asyncio.Task[None]] = set()
        self.share_engine = share_engine
        self.own_engine: Engine | None = None
        """What obeys the others' control messages."""

    async def ask(self, question: Question) -> list[Any]:
        """What the others answer; those that cannot are left out."""
        self._next_call += 1
        answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._calls[self._next_call] = answers
        self._channel.send(Ask(self._next_call, question))
        return [answer for answer in await answers if answer is not None]

    def take(self, server: Server | None, message: Ask | Answer) -> None:
        """A message of that kind has come."""
        match message:
            case Answer(call=call, value=value):
                answers = self._calls.pop(call, None)
                if answers is not None and not answers.done():
                    answers.set_result(value)
            case Ask(call=call, question=question):
                task = asyncio.create_task(self._answer(server, call, question), name="answer-peer")
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)

    async def _answer(self, server: Server | None, call: int, question: Question) -> None:
        value = None
        try:
            if server is not None:
                value = await self._value(server, question)
        finally:
            self._channel.send(Answer(call, value))

    async def _value(self, server: Server, question: Question) -> Any:
        match question:
            case TellFigures():
                return await own_figures(server)
            case Obey(control=control):
                return None if self.own_engine is None else await self.own_engine.control(control)
            case _ if server.generate is None:
                return None
            case AbortIds(ids=ids):
                return (await server.generate.abort(ids))[0]
            case AbortBatch(rid=rid):
                return await _abort_batch(server, rid)
            case AbortAll():
                return await server.generate.abort_all()


# --- for the whole server, whichever front end is asked


async def abort(server: Server, ids: list[str]) -> tuple[list[str], list[str]]:
    """Abort by replied id. Returns (aborted, unknown), as they were given."""
    assert server.generate is not None
    if server.peers is None:
        return await server.generate.abort(ids)
    own, others = await asyncio.gather(server.generate.abort(ids), server.peers.ask(AbortIds(ids)))
    ended = {*own[0], *(given for answer in others for given in answer)}
    asked = dict.fromkeys(ids)
    return [given for given in asked if given in ended], [given for given in asked if given not in ended]


async def abort_all(server: Server) -> int:
    """Abort every live request; returns how many that ended."""
    assert server.generate is not None
    if server.peers is None:
        return await server.generate.abort_all()
    own, others = await asyncio.gather(server.generate.abort_all(), server.peers.ask(AbortAll()))
    return sum([own, *others])


async def abort_batch(server: Server, rid: str) -> None:
    """Abort the request of an SGLang id, and those of a batch that was made from it."""
    if server.peers is None:
        await _abort_batch(server, rid)
    else:
        await asyncio.gather(_abort_batch(server, rid), server.peers.ask(AbortBatch(rid)))


async def _abort_batch(server: Server, rid: str) -> int:
    assert server.generate is not None
    own = ID_PREFIX + rid
    batch = [one for one in server.generate.live_ids() if one.startswith(f"{own}_") and one[len(own) + 1 :].isdecimal()]
    return len((await server.generate.abort([own, *batch]))[0])


async def num_in_flight(server: Server) -> int:
    """Requests on generation routes."""
    return server.num_in_flight if server.peers is None else (await _figures(server, server.peers)).num_in_flight


async def metrics_registry(server: Server) -> CollectorRegistry:
    """What is shown of the server now."""
    if server.peers is None:
        await server.read_engine()
        return server.registry
    figures = await _figures(server, server.peers)
    return figures.metrics.registry(_ProcessFigures(figures.process))


async def _figures(server: Server, peers: Peers) -> Figures:
    own = await own_figures(server)
    others = [msgspec.convert(answer, Figures) for answer in await peers.ask(TellFigures(own))]
    return together([own, *others], share_engine=peers.share_engine)


async def own_figures(server: Server) -> Figures:
    """What this front end has counted by itself."""
    await server.read_engine()
    process = {sample.name: sample.value for family in _OWN_PROCESS.collect() for sample in family.samples}
    return Figures(metrics=server.metrics, num_in_flight=server.num_in_flight, process=process)


_OWN_PROCESS = ProcessCollector(registry=None)


def together(figures: list[Figures], *, share_engine: bool) -> Figures:
    """Sums. Of a shared engine every one says the same, so the first one's word is taken."""
    first = figures[0].metrics
    metrics = Metrics(model_name=first.model_name, engines=first.engines)
    for one in figures:
        metrics.add(one.metrics)
    if not share_engine:
        for rank, engine in enumerate(metrics.engines):
            same = [one.metrics.engines[rank] for one in figures if rank < len(one.metrics.engines)]
            engine.stats, engine.up = total([one.stats for one in same]), all(one.up for one in same)
    process: dict[str, float] = {}
    for one in figures:
        for name, value in one.process.items():
            earliest = name.endswith("start_time_seconds") and name in process
            process[name] = min(process[name], value) if earliest else process.get(name, 0.0) + value
    in_flight = sum(one.num_in_flight for one in figures)
    return Figures(metrics=metrics, num_in_flight=in_flight, process=process)


def departed(figures: Figures) -> Figures:
    """What stays of a front end that has died: all that only grows."""
    cpu = {name: value for name, value in figures.process.items() if name.endswith("_total")}
    metrics = Metrics(engines=[])
    metrics.add(figures.metrics)
    return Figures(metrics=metrics, process=cpu)


class _ProcessFigures(Collector):
    """Of all front ends together: memory, time and descriptors are sums, the start is the first one's."""

    def __init__(self, figures: dict[str, float]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for name, value in self._figures.items():
            if name.endswith("_total"):
                yield CounterMetricFamily(name.removesuffix("_total"), "Of all front-end processes.", value=value)
            else:
                yield GaugeMetricFamily(name, "Of all front-end processes.", value=value)
