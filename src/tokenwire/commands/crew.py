"""The front ends of a server, from the side of the process that starts them: one that dies is started again.

What one asks of all others passes through here, and the figures of those that died are kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tokenwire.engine.control import Pause, Resume
from tokenwire.engine.local.keeper import CoreNews
from tokenwire.engine.local.link import new_identity
from tokenwire.engine.local.messages import State, state_after
from tokenwire.engine.local.process import describe_exit
from tokenwire.server.board import Board
from tokenwire.server.channel import (
    Answer,
    Ask,
    Channel,
    Drain,
    Figures,
    Job,
    ModelAt,
    News,
    NotStarted,
    Obey,
    Obeyed,
    Question,
    Started,
    TellFigures,
    ToStarter,
)
from tokenwire.server.peers import departed, together
from tokenwire.server.process import LAST_BYTES_S

logger = logging.getLogger("tokenwire")

HEALTHY_S = 10.0
"""One that has lived as long is started again at once when it dies; one that has not, later and later."""
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
ANSWER_S = 5.0
"""How long a front end is waited for, which may hang; a pause that waits takes as long as it takes."""
END_S = 5.0


class CrewError(Exception):
    """A front end could not start; its message is meant for the operator."""


@dataclass(slots=True, eq=False)
class Member:
    """One front-end process."""

    row: int
    identity: bytes
    process: asyncio.subprocess.Process
    channel: Channel[ToStarter]
    is_late: bool
    is_serving: bool = False
    failure: str = ""
    calls: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    figures: Figures | None = None
    """The last that it told."""


class Crew:
    """Starts one member for each row of the board."""

    def __init__(self, job: Job, board: Board, descriptors: list[int], forget: Callable[[bytes], None]) -> None:
        """`job` is completed for each; `descriptors` stay open in each; `forget` hears who has died."""
        self._job = job
        self._board = board
        self._descriptors = descriptors
        self._forget = forget
        self._members: dict[int, Member] = {}
        self._lives: list[asyncio.Task[None]] = []
        self._relays: set[asyncio.Task[None]] = set()
        self._model: str | None = None
        self._news: dict[int, CoreNews] = {}
        self._pause: Pause | None = None
        self._departed: Figures | None = None
        self._next_call = 0
        self._draining = asyncio.Event()
        self._names: asyncio.Queue[str] = asyncio.Queue()  # one for each that starts serving
        self._trouble: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    # --- for the supervisor

    def start(self) -> None:
        for row in range(self._board.num_rows):
            self._lives.append(asyncio.create_task(self._live(row), name=f"front-end-{row}"))

    async def serving(self) -> str:
        """Wait for all to serve; returns the model's served name. Raises `CrewError` when one cannot."""
        name = ""
        for _ in self._lives:
            started = asyncio.ensure_future(self._names.get())
            await asyncio.wait({started, self._trouble}, return_when=asyncio.FIRST_COMPLETED)
            if self._trouble.done():
                started.cancel()
                raise CrewError(self._trouble.result())
            name = started.result()
        return name

    def tell_model(self, folder: str) -> None:
        self._model = folder
        self._send_all(ModelAt(folder))

    def tell_core(self, rank: int, news: CoreNews) -> None:
        self._news[rank] = news
        self._send_all(News(rank, news))

    @property
    def state(self) -> State:
        """That of the server: what cores begin in."""
        return "ready" if self._pause is None else state_after(self._pause)

    def drain(self) -> None:
        """Let running requests finish; called again: end now."""
        self._draining.set()
        self._send_all(Drain())

    async def ended(self, timeout_s: float) -> None:
        """Wait for all to end after `drain`; those that take longer are killed."""
        if self._lives:
            _, late = await asyncio.wait(self._lives, timeout=timeout_s)
            if late:
                logger.warning("Killing %d front ends that did not end", len(late))
                for member in list(self._members.values()):
                    member.process.kill()
                await asyncio.wait(late)
        for relay in list(self._relays):
            relay.cancel()

    def _send_all(self, message: msgspec.Struct) -> None:
        for member in self._members.values():
            member.channel.send(message)

    # --- one front end after another in a row

    async def _live(self, row: int) -> None:
        delay_s, is_first = 0.0, True
        while not self._draining.is_set():
            born = time.monotonic()
            try:
                member = await self._spawn(row, is_late=not is_first)
            except OSError as exc:  # no more processes, memory or descriptors to be had
                has_served, told = False, f"it could not be started: {exc}"
            else:
                has_served, told = await self._end_of(member)
            if self._draining.is_set():
                return
            if is_first and not has_served:
                if not self._trouble.done():
                    self._trouble.set_result(told)
                return
            is_well = has_served and time.monotonic() - born > HEALTHY_S
            delay_s = 0.0 if is_well else min(MAX_DELAY_S, delay_s * 2 or FIRST_DELAY_S)
            logger.error("front end %d is gone, starting another: %s", row, told)
            is_first = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), delay_s)

    async def _end_of(self, member: Member) -> tuple[bool, str]:
        """Wait for it; has it served, and how did it end?"""
        await self._listen(member)
        try:
            code = await asyncio.wait_for(member.process.wait(), END_S)
        except TimeoutError:
            member.process.kill()
            code = await member.process.wait()
        self._bury(member)
        return member.is_serving, member.failure or f"a front end ended by itself ({describe_exit(code)})"

    async def _spawn(self, row: int, *, is_late: bool) -> Member:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tokenwire.commands.worker",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *self._descriptors],
            )
        channel: Channel[ToStarter] = await Channel.over(ours, ToStarter)
        member = Member(row, new_identity(), process, channel, is_late)
        self._members[row] = member
        job = msgspec.structs.replace(self._job, row=row, identity=member.identity, is_late=is_late, pause=self._pause)
        channel.send(job)
        if self._model is not None:
            channel.send(ModelAt(self._model))
        for rank, news in self._news.items():
            channel.send(News(rank, news))
        if self._draining.is_set():
            channel.send(Drain())
        return member

    async def _listen(self, member: Member) -> None:
        """Until the channel closes, which it does when the process ends, however it ends."""
        while (message := await member.channel.receive()) is not None:
            match message:
                case Started(name=name):
                    member.is_serving = True
                    self._names.put_nowait(name)
                    if member.is_late:
                        logger.warning("front end %d serves again", member.row)
                case NotStarted(message=told):
                    member.failure = told
                case Obeyed(control=control):
                    self._note(control)
                case Answer(call=call, value=value):
                    answer = member.calls.pop(call, None)
                    if answer is not None and not answer.done():
                        answer.set_result(value)
                case Ask():
                    relay = asyncio.create_task(self._relay(member, message), name="relay-question")
                    self._relays.add(relay)
                    relay.add_done_callback(self._relays.discard)

    def _bury(self, member: Member) -> None:
        """Whatever of it others may wait for or count on."""
        del self._members[member.row]
        member.channel.close()
        for answer in member.calls.values():
            if not answer.done():
                answer.set_result(None)
        self._forget(member.identity)
        self._board.clear(member.row)
        if member.figures is not None:
            left = departed(member.figures)
            known = [left] if self._departed is None else [self._departed, left]
            self._departed = together(known, share_engine=True)

    def _note(self, control: Pause | Resume) -> None:
        self._pause = None if isinstance(control, Resume) else control

    # --- questions

    async def _relay(self, asker: Member, ask: Ask) -> None:
        question = ask.question
        match question:
            case TellFigures(own=own):
                asker.figures = own
            case Obey(control=control):
                self._note(control)
        others = [member for member in self._members.values() if member is not asker and member.is_serving]
        answers = list(await asyncio.gather(*(self._ask(member, question) for member in others)))
        if isinstance(question, TellFigures):
            for member, answer in zip(others, answers, strict=True):
                if answer is not None:
                    member.figures = msgspec.convert(answer, Figures)
            answers = [member.figures for member in others]
            if self._departed is not None:
                answers.append(self._departed)
        asker.channel.send(Answer(ask.call, answers))

    async def _ask(self, member: Member, question: Question) -> Any:
        """Its answer; None when it dies over it."""
        self._next_call += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        member.calls[self._next_call] = answer
        member.channel.send(Ask(self._next_call, question))
        patience_s = None if isinstance(question, Obey) else ANSWER_S
        try:
            return await asyncio.wait_for(answer, patience_s)
        except TimeoutError:
            return None


def patience_s(shutdown_timeout_s: float) -> float:
    """How long draining may take before something is wrong."""
    return shutdown_timeout_s + LAST_BYTES_S + END_S
