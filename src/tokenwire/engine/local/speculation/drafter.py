"""Which sequences are guessed for, how far, and what became of the guesses.

The rule that keeps guessing cheap: a sequence whose guess was wrong from its first token on rests for a while, twice
as long after every further such guess; one accepted token ends that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenwire.engine.local.options import NgramOptions
from tokenwire.engine.local.requests import Sequence
from tokenwire.engine.local.speculation.lookup import NgramIndex

LONGEST_REST = 32
"""Steps that a sequence rests at most, so that one that begins to repeat itself is noticed."""


@dataclass(slots=True, eq=False)
class DraftState:
    """What speculation keeps of one sequence. The bytes are one verification each."""

    index: NgramIndex
    num_spec_tokens: int
    drafted: bytearray = field(default_factory=bytearray)
    accepted: bytearray = field(default_factory=bytearray)
    num_judged: int = 0
    """Verifications that `rest` has taken into account."""
    rest: int = 0
    """Steps without a guess that are still to come."""
    misses: int = 0
    """Guesses in a row of which nothing was accepted."""

    def judge(self) -> None:
        """Learn from the newest verification, once."""
        if self.num_judged == len(self.accepted):
            return
        self.num_judged = len(self.accepted)
        if self.accepted[-1]:
            self.misses = 0
        else:
            self.misses += 1
            self.rest = min(2**self.misses, LONGEST_REST)


@dataclass(slots=True)
class DraftFigures:
    """Counters over all sequences; they only grow."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)


class Drafter:
    """Guesses by prompt lookup. A sequence takes part if it has a `DraftState`."""

    def __init__(self, options: NgramOptions) -> None:
        self._options = options
        self.figures = DraftFigures(accepted_per_position=[0] * options.num_speculative_tokens)

    def new_state(self) -> DraftState:
        """For a sequence without output."""
        options = self._options
        return DraftState(NgramIndex(options.lookup_min, options.lookup_max), options.num_speculative_tokens)

    def propose(self, sequence: Sequence) -> list[int]:
        """What may follow the newest token; never so much that the sequence could outgrow its `max_tokens`."""
        state = sequence.drafts
        if state is None:
            return []
        state.judge()
        if state.rest > 0:
            state.rest -= 1
            return []
        # The step gives one token more than it guesses right.
        limit = min(state.num_spec_tokens, sequence.request.max_tokens - sequence.num_output - 1)
        if limit <= 0:
            return []
        state.index.extend(sequence.token_ids[len(state.index) :])
        return state.index.guess(limit)

    def verifying(self, sequence: Sequence, count: int) -> None:
        """A guess of `count` tokens is about to be compared with what is sampled."""
        assert sequence.drafts is not None
        sequence.drafts.drafted.append(count)
        sequence.drafts.accepted.append(0)
        self.figures.num_drafts += 1
        self.figures.num_draft_tokens += count

    def was_right(self, sequence: Sequence) -> None:
        """The next token of that guess is the one that was sampled."""
        assert sequence.drafts is not None
        accepted = sequence.drafts.accepted
        self.figures.accepted_per_position[accepted[-1]] += 1
        accepted[-1] += 1
