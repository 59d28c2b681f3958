"""The queue between an engine's step loop and one request's reader.

The engine puts outputs without waiting. A reader that keeps up sees one output per step; once `max_pending` wait for
it, newer ones are merged into the last of the same sequence, so a slow client costs its own tokens' memory
and nothing else. A sequence that its reader has enough of may still have a last word: see `OutputStream.stop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from tokenwire.engine.base import EngineOutput
from tokenwire.errors import TokenwireError

MAX_PENDING = 32


class RequestQueue:
    """An `OutputStream` that an engine fills with `put` and `fail`, on the event loop's thread."""

    __slots__ = ("_abort", "_ask_end", "_ending", "_error", "_max_pending", "_open", "_pending", "_stop", "_waiter")

    def __init__(
        self,
        n: int,
        abort: Callable[[], None],
        stop: Callable[[int], None],
        *,
        ask_end: Callable[[int], bool] | None = None,
        max_pending: int = MAX_PENDING,
    ) -> None:
        """`n` sequences. `abort` is called once if the reader leaves before the end, `stop` per sequence it ends.

        `ask_end` ends a sequence whose last output is still wanted, and says whether one will be put; None: never.
        """
        self._open = set(range(n))
        self._abort: Callable[[], None] | None = abort
        self._stop = stop
        self._ask_end = ask_end
        self._ending: dict[int, asyncio.TimerHandle] = {}
        """Sequences that were stopped and whose last output is waited for, until the timer gives up."""
        self._max_pending = max_pending
        self._pending: list[EngineOutput] = []
        self._error: TokenwireError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        """Every sequence has finished, or the stream failed, or the reader left."""
        return not self._open or self._error is not None or self._abort is None

    def put(self, output: EngineOutput) -> None:
        """Add news of one sequence. After the end of that sequence, or once the reader left, it is dropped."""
        if self._abort is None or output.index not in self._open:
            return
        if self._ending and output.index in self._ending:
            if output.finish_reason is None:
                return
            self._ending.pop(output.index).cancel()
            output = _last_word(output)
        if output.finish_reason is not None:
            self._open.discard(output.index)
        pending = self._pending
        # An error stays apart from the tokens before it: those are still to be shown.
        if len(pending) < self._max_pending or output.finish_reason == "error" or not self._merge(output):
            pending.append(output)
        if self._waiter is not None:
            self._wake()

    def fail(self, error: TokenwireError) -> None:
        """End the stream with an error, after what is pending. Sequences that were stopped have ended well."""
        for index in list(self._ending):
            self._give_up(index)
        if not self.done:
            self._error = error
            self._wake()

    def _merge(self, output: EngineOutput) -> bool:
        for earlier in reversed(self._pending):
            if earlier.index == output.index:
                if earlier.weight_version != output.weight_version and output.token_ids:
                    return False
                earlier.absorb(output)
                return True
        return False

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __aiter__(self) -> RequestQueue:
        return self

    async def __anext__(self) -> list[EngineOutput]:
        while not self._pending:
            if self._error is not None:
                self._abort = None
                raise self._error
            if not self._open or self._abort is None:
                self._abort = None
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken, self._pending = self._pending, []
        return taken

    def stop(self, index: int, end_within_s: float | None = None) -> None:
        """See `OutputStream.stop`."""
        if end_within_s is not None:
            self._stop_and_wait(index, end_within_s)
        elif index in self._open:
            self._open.discard(index)
            self._pending = [output for output in self._pending if output.index != index]
            self._stop(index)
            self._wake()

    def _stop_and_wait(self, index: int, end_within_s: float) -> None:
        ends = [output for output in self._pending if output.index == index and output.finish_reason is not None]
        self._pending = [output for output in self._pending if output.index != index]
        if ends:  # it had ended before the reader said so
            self._pending.append(_last_word(ends[-1]))
        elif index in self._open and index not in self._ending:
            loop = asyncio.get_running_loop()
            self._ending[index] = loop.call_later(end_within_s, self._give_up, index)
            if self._ask_end is None or not self._ask_end(index):
                self._give_up(index)

    def _give_up(self, index: int) -> None:
        """No last word comes: an empty one stands for it."""
        timer = self._ending.pop(index, None)
        if timer is not None:
            timer.cancel()
            self._open.discard(index)
            self._stop(index)
            self._pending.append(EngineOutput(index, [], finish_reason="abort"))
            self._wake()

    async def aclose(self) -> None:
        abort, self._abort = self._abort, None
        self._pending = []
        for timer in self._ending.values():
            timer.cancel()
        self._ending.clear()
        if abort is not None and self._open and self._error is None:
            abort()
        self._wake()


def _last_word(output: EngineOutput) -> EngineOutput:
    """The end of a sequence without what it said after its reader had enough."""
    return replace(
        output, token_ids=[], logprobs=None, sampling_mask=None, finish_reason="abort", stop_reason=None, error=None
    )
