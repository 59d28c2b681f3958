"""One sequence on its way to a reader: ids in, text out, with what may begin a stop string held back.

A token and its text leave together: as long as a part of a token's text waits, its id (and whatever the
caller keeps beside it) waits too, and so do the tokens after it. The caller queues ids and logprobs itself; `Released`
says how many of the front of that queue may go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tokenwire.derender.detokenizer import DetokenizerOptions, DetokenizerState, IncrementalDetokenizer
from tokenwire.derender.stop import StopMatch, StopMatcher, StopRules
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.errors import InvalidStateError

MAX_HELD_TOKENS = 256
"""Ids that wait at most (skipped special tokens may follow a held one without end); then they go before their text."""
MAX_HELD_CHARS = 1 << 14
"""Bound of the text that a state may hold back beyond the longest stop string; one token's text is far shorter."""


class Released(NamedTuple):
    """What one call sets free."""

    text: str
    num_kept: int
    """How many of the ids given in belong to the sequence; fewer than given only after a stop string."""
    num_released: int
    """How many ids leave the queue (those held before, then the kept ones)."""
    stop_string: str | None = None
    text_token_count: int | None = None
    """With `stop_string`: the fewest leading ids of the sequence whose text contains all text given out."""


class SequenceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `SequenceText` between two calls."""

    detokenizer: DetokenizerState = DetokenizerState()
    num_tokens: int = 0
    tail: str = ""
    unsent: str = ""
    held: list[int] = []
    """Length of each held token's text; their sum is the length of `unsent` unless ids went ahead."""
    covered: int = 0


class SequenceText:
    """The text of one sequence."""

    __slots__ = ("_covered", "_detokenizer", "_held", "_matcher", "_unsent", "num_tokens")

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_token_ids: Sequence[int] = (),
        options: DetokenizerOptions = DetokenizerOptions(),  # noqa: B008  frozen
        stop: StopRules = StopRules(),  # noqa: B008  frozen
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(vocabulary, prompt_token_ids, options)
        self._matcher = StopMatcher(stop) if stop.strings else None
        self._unsent = ""
        self._held: list[int] = []
        self._covered = 0
        """With stop strings: ids up to the last one given out that has text."""
        self.num_tokens = 0
        """Ids kept so far, held ones too."""

    @property
    def num_held(self) -> int:
        """Ids that the caller's queue must still hold."""
        return len(self._held)

    def feed(self, token_ids: Sequence[int], *, finished: bool = False, hide_last: bool = False) -> Released:
        """Take the next ids. `finished`: there are no more. `hide_last`: the last one ended generation and has no text.

        After a stop string, or `finished`, nothing waits and no more ids may come.
        """
        visible = token_ids[:-1] if hide_last else token_ids
        if self._matcher is None:
            self.num_tokens += len(token_ids)
            return Released(self._detokenizer.feed(visible), len(token_ids), len(token_ids))
        texts = self._detokenizer.feed_each(visible)
        if hide_last:
            texts.append("")
        return self._with_stops(self._matcher, texts, finished)

    def _with_stops(self, matcher: StopMatcher, texts: list[str], finished: bool) -> Released:
        if not self._held and matcher.passes(texts):
            # The usual case: nothing waits, and no stop string begins here.
            self.num_tokens += len(texts)
            text = "".join(texts)
            if text:
                self._covered = self.num_tokens if texts[-1] else self.num_tokens - _trailing_empty(texts)
            return Released(text, len(texts), len(texts))
        for position, text in enumerate(texts):
            if match := matcher.push(text):
                return self._stopped(matcher, match, text, position + 1)
            self._unsent += text
            self._held.append(len(text))
            self.num_tokens += 1
        if finished:
            matcher.clear()
        if finished or matcher.rules.include_in_output:
            return self._release(len(texts), len(self._held), len(self._unsent))
        count, chars = self._free(matcher.num_waiting)
        return self._release(len(texts), count, chars)

    def _free(self, waiting: int) -> tuple[int, int]:
        """How many held tokens, and how much unsent text, are free when the last `waiting` characters are not."""
        if waiting == 0:
            return len(self._held), len(self._unsent)
        count, chars = len(self._held), 0
        while count and chars < waiting:
            count -= 1
            chars += self._held[count]
        excess = len(self._held) - count - MAX_HELD_TOKENS
        return count + max(0, excess), max(0, len(self._unsent) - max(chars, waiting))

    def _stopped(self, matcher: StopMatcher, match: StopMatch, text: str, num_kept: int) -> Released:
        end = len(self._unsent) + (match.end if matcher.rules.include_in_output else match.start)
        before = self.num_tokens - len(self._held)
        self.num_tokens += 1
        self._unsent += text
        self._held.append(len(text))
        count = before + _tokens_until(self._held, end) if end else self._covered
        released = self._release(num_kept, len(self._held), end)
        self._unsent = ""
        matcher.clear()
        return released._replace(stop_string=match.string, text_token_count=count)

    def _release(self, num_kept: int, count: int, chars: int) -> Released:
        text = self._unsent[:chars]
        self._unsent = self._unsent[chars:]
        before = self.num_tokens - len(self._held)
        self._covered = max(
            (before + i for i, length in enumerate(self._held[:count], 1) if length), default=self._covered
        )
        self._held = self._held[count:]
        return Released(text, num_kept, count)

    def state(self) -> SequenceState:
        return SequenceState(
            self._detokenizer.state(),
            self.num_tokens,
            self._matcher.tail if self._matcher else "",
            self._unsent,
            list(self._held),
            self._covered,
        )

    @classmethod
    def from_state(
        cls,
        vocabulary: Vocabulary,
        state: SequenceState,
        options: DetokenizerOptions = DetokenizerOptions(),  # noqa: B008
        stop: StopRules = StopRules(),  # noqa: B008
    ) -> SequenceText:
        """Go on from `state`. Raises `InvalidStateError` for one that cannot have been written here."""
        _check(state, stop)
        sequence = cls(vocabulary, (), options, stop)
        sequence._detokenizer = IncrementalDetokenizer.from_state(vocabulary, state.detokenizer, options)
        if sequence._matcher is not None:
            sequence._matcher = StopMatcher(stop, num_tokens=state.num_tokens, tail=state.tail)
        sequence._unsent = state.unsent
        sequence._held = list(state.held)
        sequence._covered = state.covered
        sequence.num_tokens = state.num_tokens
        return sequence


def _trailing_empty(texts: Sequence[str]) -> int:
    return next((count for count, text in enumerate(reversed(texts)) if text), len(texts))


def _tokens_until(lengths: Sequence[int], chars: int) -> int:
    """The fewest leading tokens whose texts together reach `chars` characters."""
    count = 0
    while count < len(lengths) and chars > 0:
        chars -= lengths[count]
        count += 1
    return count


def _check(state: SequenceState, stop: StopRules) -> None:
    longest = max((len(string) for string in stop.strings), default=1)
    tail_ok = len(state.tail) < longest and any(string.startswith(state.tail) for string in stop.strings or ("",))
    held_ok = len(state.held) <= MAX_HELD_TOKENS + 1 and all(length >= 0 for length in state.held)
    text_ok = sum(state.held) <= len(state.unsent) <= longest + MAX_HELD_CHARS
    if not (tail_ok and held_ok and text_ok and state.num_tokens >= len(state.held)):
        raise InvalidStateError("the stop-string part does not fit the request's stop strings")
    if stop.include_in_output and (state.unsent or state.held):
        raise InvalidStateError("nothing is held back when the stop string stays in the output")
    if not stop.include_in_output and not (state.unsent.endswith(state.tail) and (state.tail or not state.unsent)):
        raise InvalidStateError("the text held back does not end in what may begin a stop string")
