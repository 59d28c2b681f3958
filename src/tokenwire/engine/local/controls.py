"""Pause, resume, cache reset and weight label in the core. A pause that waits for running work answers when done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenwire.engine.control import Pause, ResetPrefixCache, Resume, WeightTransfer
from tokenwire.engine.local.label import label_facts
from tokenwire.engine.local.messages import ControlCall, Reply, State

if TYPE_CHECKING:
    from tokenwire.engine.local.core import Core


@dataclass(slots=True, frozen=True)
class _Waiting:
    """A pause whose answer is due once everything has finished."""

    client: bytes
    call: int
    clear_cache: bool


class PauseControl:
    """abort and wait refuse new requests while paused; keep freezes those that run and lets new ones queue."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: list[_Waiting] = []
        self.frozen = False
        self.refusing = False
        self._has_been_told = False

    @property
    def state(self) -> State:
        if self.refusing:
            return "closed"
        return "frozen" if self.frozen else "ready"

    def begin(self, state: State) -> None:
        """Start in the state of a core that this one takes the place of; what it was told since is newer."""
        if self._has_been_told:
            return
        self.frozen = state == "frozen"
        self.refusing = state == "closed"

    def take(self, client: bytes, message: ControlCall) -> None:
        """Carry out a control message and answer it, now or later."""
        self._core.mark_changed()
        match message.control:
            case Pause() as pause:
                self._has_been_told = True
                self._pause(client, message.call, pause)
            case Resume():
                self._has_been_told = True
                self._resume()
                self._core.reply(client, Reply(message.call, {"status": "resumed"}))
            case ResetPrefixCache() as reset:
                done = self._core.scheduler.drop_prefix_cache(recompute_running=reset.reset_running_requests)
                self._core.reply(client, Reply(message.call, {"success": done}))
            case WeightTransfer() as step:
                self._core.reply(client, Reply(message.call, self._label(step)))

    def _label(self, step: WeightTransfer) -> dict[str, Any]:
        """Facts about the label of the weights, after it was set where that was asked."""
        if step.action == "update_weight_version":
            self._core.set_weight_version(str(step.info["new_version"]))
        return label_facts(step, self._core.weight_version)

    def settle(self) -> None:
        """Answer pauses that have waited for the end of running work."""
        if self._waiting and self._core.idle:
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                self._paused(entry.client, entry.call, clear_cache=entry.clear_cache)

    def _pause(self, client: bytes, call: int, pause: Pause) -> None:
        if pause.mode == "wait":
            self.refusing = True
            self.frozen = False
            self._waiting.append(_Waiting(client, call, pause.clear_cache))
            return
        if pause.mode == "abort":
            self.refusing = True
            self._core.end_all("abort")
        else:
            self.frozen = True
        self._paused(client, call, clear_cache=pause.clear_cache)

    def _paused(self, client: bytes, call: int, *, clear_cache: bool) -> None:
        if clear_cache:
            self._core.scheduler.drop_prefix_cache(recompute_running=True)
        self._core.mark_changed()
        self._core.reply(client, Reply(call, {"status": "paused"}))

    def _resume(self) -> None:
        self.frozen = False
        self.refusing = False
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            self._core.reply(entry.client, Reply(entry.call, error="resumed before everything had finished"))
