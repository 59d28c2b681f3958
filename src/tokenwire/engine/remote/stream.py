"""The output stream of a remote request: a queue that makes the worker wait when its reader is slow."""

from __future__ import annotations

from collections.abc import Callable

from tokenwire.engine.base import EngineOutput
from tokenwire.engine.queue import RequestQueue


class RemoteStream(RequestQueue):
    """As `RequestQueue`; `when_drained` is called once after the reader has taken what waits."""

    __slots__ = ("_when_drained",)

    def __init__(
        self, n: int, abort: Callable[[], None], stop: Callable[[int], None], ask_end: Callable[[int], bool]
    ) -> None:
        super().__init__(n, abort, stop, ask_end=ask_end)
        self._when_drained: Callable[[], None] | None = None

    @property
    def is_full(self) -> bool:
        """The reader is behind: from here on outputs are merged, and the worker should wait."""
        return len(self._pending) >= self._max_pending

    def when_drained(self, callback: Callable[[], None]) -> None:
        self._when_drained = callback

    async def __anext__(self) -> list[EngineOutput]:
        taken = await super().__anext__()
        if self._when_drained is not None:
            callback, self._when_drained = self._when_drained, None
            callback()
        return taken
