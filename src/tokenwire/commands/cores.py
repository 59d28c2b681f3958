"""The engine's cores where several front ends share them: kept here, told of to all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tokenwire.engine.local.keeper import CoreKeeper, CoreNews
from tokenwire.engine.local.link import FrontLink
from tokenwire.engine.local.messages import Begin, Forget, FromCore, State
from tokenwire.engine.local.models import Progress
from tokenwire.engine.local.options import LocalEngineOptions

Tell = Callable[[int, CoreNews], None]
"""Called with a rank and what became of its core."""


class Cores:
    """One core process for each of `options`, by rank."""

    def __init__(
        self, options: Sequence[LocalEngineOptions], progress: Progress, tell: Tell, state: Callable[[], State]
    ) -> None:
        """`state` is asked whenever a core begins: that which the server is in."""
        self._keepers = [CoreKeeper(one, progress) for one in options]
        self._links: list[FrontLink | None] = [None] * len(options)
        self._tell = tell
        self._state = state
        self._followers: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._keepers)

    async def start(self) -> None:
        """Bring all up. Raises a `ServiceError` when one cannot be."""
        addresses = await asyncio.gather(*(keeper.first() for keeper in self._keepers))
        for rank, address in enumerate(addresses):
            self._note(rank, CoreNews(address=address))
            self._followers.append(asyncio.create_task(self._follow(rank), name=f"follow-core-{rank}"))

    def forget(self, identity: bytes) -> None:
        """A front end has died: end what it had running."""
        for link in self._links:
            if link is not None:
                link.send(Forget(identity))

    async def close(self) -> None:
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        for link in self._links:
            if link is not None:
                link.close()
        await asyncio.gather(*(keeper.close() for keeper in self._keepers))

    async def _follow(self, rank: int) -> None:
        while True:
            self._note(rank, await self._keepers[rank].next())

    def _note(self, rank: int, news: CoreNews) -> None:
        link = self._links[rank]
        if link is not None:
            link.close()
        # Not attached: what the core tells its front ends is not for us.
        self._links[rank] = link = None if news.address is None else FrontLink(news.address, _ignore)
        if link is not None:
            link.send(Begin(self._state()))
        self._tell(rank, news)


def _ignore(message: FromCore) -> None:
    """A core answers nothing to one that has not attached."""
