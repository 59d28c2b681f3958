"""Stop strings over a growing text: which one ends it, and what must wait because it may begin one.

The string that is complete first in the text wins; of two complete at the same character, the one earlier in the
caller's list. So the result does not depend on how the tokens were grouped into steps. A stop string counts only if a
token at or after `min_tokens` completes it; it may begin before.
"""

from __future__ import annotations

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
    """Looks for the rules' strings, token by token. Work and memory are bounded by the length of the strings."""

    __slots__ = ("_first_chars", "num_tokens", "rules", "tail")

    def __init__(self, rules: StopRules, *, num_tokens: int = 0, tail: str = "") -> None:
        """`num_tokens` and `tail` continue an earlier matcher."""
        self.rules = rules
        self.num_tokens = num_tokens
        self.tail = tail
        """The end of the text so far, as far as it may begin a stop string."""
        self._first_chars = {string[0] for string in rules.strings}

    def push(self, text: str) -> StopMatch | None:
        """Take the next token's text. After a match the matcher is spent."""
        self.num_tokens += 1
        if not text or (not self.tail and self._first_chars.isdisjoint(text)):
            return None
        window = self.tail + text
        if self.num_tokens > self.rules.min_tokens and (match := self._first_complete(window)):
            return match
        self.tail = _open_end(window, self.rules.strings)
        return None

    def _first_complete(self, window: str) -> StopMatch | None:
        old = len(self.tail)
        best: tuple[int, str] | None = None
        for string in self.rules.strings:
            # A string that ends inside the tail was seen before, when min_tokens forbade it.
            found = window.find(string, max(0, old - len(string) + 1))
            if found >= 0 and (best is None or found + len(string) < best[0]):
                best = (found + len(string), string)
        if best is None:
            return None
        end, string = best
        return StopMatch(string, end - len(string) - old, end - old)


def _open_end(window: str, strings: Sequence[str]) -> str:
    """The longest end of `window` that begins one of `strings` without completing it."""
    longest = 0
    for string in strings:
        for length in range(min(len(string) - 1, len(window)), longest, -1):
            if string.startswith(window[-length:]):
                longest = length
                break
    return window[-longest:] if longest else ""
