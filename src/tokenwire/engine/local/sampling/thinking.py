"""Thinking budgets: after so many reasoning tokens, the end of reasoning is forced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ThinkingMarkers:
    """Token sequences around a model's reasoning; none may be empty."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    """What ends reasoning when the model writes it."""
    forced_end: tuple[int, ...]
    """What is forced; may have a sentence before the end marker, and must end with it to close the reasoning."""


class ThinkingBudget:
    """Watches one sequence, prompt included. The rule is vLLM's.

    The sequence reasons if its last start marker lies after its last end marker. Once the tokens since that start
    marker have reached `budget`, each next token is forced to be the one that continues `forced_end` (the longest
    beginning of it that the sequence ends with), until the end marker is there. A second reasoning section has the
    whole budget again.
    """

    __slots__ = ("_budget", "_last_end", "_last_start", "_length", "_markers", "_reach", "_tail")

    def __init__(self, budget: int, markers: ThinkingMarkers, prompt_token_ids: Sequence[int]) -> None:
        self._budget = budget
        self._markers = markers
        self._reach = max(len(markers.start), len(markers.end), len(markers.forced_end))
        prompt = list(prompt_token_ids)
        self._length = len(prompt)
        self._last_start = last_occurrence(prompt, markers.start)
        self._last_end = last_occurrence(prompt, markers.end)
        self._tail = prompt[-self._reach :]

    def append(self, token_id: int) -> None:
        """Take the next token of the sequence."""
        self._length += 1
        self._tail.append(token_id)
        del self._tail[: -self._reach]
        if _ends_with(self._tail, self._markers.start):
            self._last_start = self._length - len(self._markers.start)
        if _ends_with(self._tail, self._markers.end):
            self._last_end = self._length - len(self._markers.end)

    def forced_now(self) -> int | None:
        """The id forced at the next position, if any."""
        if self._last_start <= self._last_end:
            return None
        spent = self._length - (self._last_start + len(self._markers.start))
        if spent < self._budget:
            return None
        end = self._markers.forced_end
        begun = next((n for n in range(len(end) - 1, 0, -1) if _ends_with(self._tail, end[:n])), 0)
        return end[begun]


def _ends_with(tail: list[int], ids: tuple[int, ...]) -> bool:
    return tail[-1] == ids[-1] and tuple(tail[-len(ids) :]) == ids if tail else False


def last_occurrence(token_ids: list[int], ids: tuple[int, ...]) -> int:
    """Where `ids` last begins in `token_ids`; -1 if nowhere."""
    for start in range(len(token_ids) - len(ids), -1, -1):
        if token_ids[start] == ids[0] and tuple(token_ids[start : start + len(ids)]) == ids:
            return start
    return -1
