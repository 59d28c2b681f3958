"""Stop strings over a growing text: which one ends it, and what must wait because it may begin one.

The string that is complete first in the text wins; of two complete at the same character, the one earlier in the
caller's list. So the result does not depend on how the tokens were grouped into steps. A stop string counts only if a
token at or after `min_tokens` completes it; it may begin before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True, frozen=True)
class StopRules:
    """What the request says about stop strings."""

    strings: tuple[str, ...] = ()
    min_tokens: int = 0
    include_in_output: bool = False


class StopMatch(NamedTuple):
    """`start` and `end` count characters from the beginning of the token that completed the string; `start` is
    negative where it began in an earlier token."""

    string: str
    start: int
    end: int


class StopMatcher:
    """Looks for the rules' strings, token by token: work in step with the text, memory with the strings.

    Each string has how much of it the text now ends with, moved on by the Knuth-Morris-Pratt rule.
    """

    __slots__ = ("_borders", "_beginning", "_matched", "num_tokens", "rules")

    def __init__(self, rules: StopRules, *, num_tokens: int = 0, tail: str = "") -> None:
        """`num_tokens` and `tail` continue an earlier matcher."""
        self.rules = rules
        # Text that no stop string begins in is passed over by this one search.
        self._beginning = re.compile("[" + "".join(re.escape(string[0]) for string in rules.strings) + "]")
        self._borders = [_borders(string) for string in rules.strings]
        self._matched = [0] * len(rules.strings)
        self._move(tail, may_end=False)
        self.num_tokens = num_tokens

    @property
    def tail(self) -> str:
        """The end of the text so far, as far as it may begin a stop string."""
        longest = max(range(len(self._matched)), key=self._matched.__getitem__, default=None)
        return "" if longest is None else self.rules.strings[longest][: self._matched[longest]]

    @property
    def num_waiting(self) -> int:
        """Length of `tail`."""
        return max(self._matched, default=0)

    def passes(self, texts: Sequence[str]) -> bool:
        """Take the next tokens if no stop string is under way and none begins in them; else take nothing."""
        if any(self._matched) or any(map(self._beginning.search, texts)):
            return False
        self.num_tokens += len(texts)
        return True

    def push(self, text: str) -> StopMatch | None:
        """Take the next token's text. After a match the matcher is spent."""
        self.num_tokens += 1
        return self._move(text, may_end=self.num_tokens > self.rules.min_tokens) if text else None

    def clear(self) -> None:
        """Nothing waits any more: the text has ended."""
        self._matched = [0] * len(self._matched)

    def _move(self, text: str, *, may_end: bool) -> StopMatch | None:
        matched = self._matched
        position = 0
        while position < len(text):
            if not any(matched):
                beginning = self._beginning.search(text, position)
                if beginning is None:
                    return None
                position = beginning.start()
            ended = self._take(text[position], may_end=may_end)
            position += 1
            if ended is not None:
                return StopMatch(ended, position - len(ended), position)
        return None

    def _take(self, char: str, *, may_end: bool) -> str | None:
        """Move every string on by one character; the first of the list that is complete with it."""
        matched = self._matched
        for n, string in enumerate(self.rules.strings):
            length, borders = matched[n], self._borders[n]
            while length and string[length] != char:
                length = borders[length - 1]
            if string[length] == char:
                length += 1
            if length == len(string):
                if may_end:
                    return string
                length = borders[length - 1]
            matched[n] = length
        return None


def _borders(string: str) -> list[int]:
    """For each prefix, the length of its longest proper end that is also its beginning."""
    borders = [0] * len(string)
    length = 0
    for position in range(1, len(string)):
        while length and string[length] != string[position]:
            length = borders[length - 1]
        if string[length] == string[position]:
            length += 1
        borders[position] = length
    return borders
