"""A client that goes away ends the work that was done for it, at once and by the ordinary way of cancellation."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive

PATIENCE_S = 0.02


class DisconnectWatch:
    """`async with DisconnectWatch(receive) as watch:` cancels the body when the client leaves.

    The cancellation does not leave the block: afterwards `watch.gone` tells. It begins to look when the work has
    lasted `PATIENCE_S`: most short answers are done by then, and cost no task. The request's body must have been
    read, and the response must not end inside the block: an ended response looks like a client that left.
    """

    __slots__ = ("_owner", "_receive", "_timer", "_watcher", "gone")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.gone = False

    async def __aenter__(self) -> DisconnectWatch:
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        self._watcher: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._begin)
        return self

    def _begin(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._owner.cancel()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if not self.gone:
            return False
        # Ours, unless somebody else cancelled too: then it must go on.
        return self._owner.uncancel() == 0 and exc_type is asyncio.CancelledError
