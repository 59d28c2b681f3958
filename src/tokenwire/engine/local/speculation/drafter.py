"""Which sequences are guessed for, how far, and what became of the guesses.

A guessed token costs a row of the step, and brings a token with the probability that it is right. So every guess has an
estimate, from how well its sequence was guessed before, and those are computed that are likelier right than what their
row costs, as a share of what a token costs without guesses.

The rule that keeps text without repetitions cheap: a sequence whose guess was wrong from its first token on rests for a
while, twice as long after every further such guess; one accepted token ends that.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from tokenwire.engine.local.options import NgramOptions
from tokenwire.engine.local.requests import Sequence
from tokenwire.engine.local.speculation.costs import MEMORY_BOUND, StepCosts
from tokenwire.engine.local.speculation.lookup import NgramIndex

LONGEST_REST = 32
"""Steps that a sequence rests at most, so that one that begins to repeat itself is noticed."""
MAX_PRICE = 0.95
"""Nothing is guessed where a row costs more of a token than this."""
_MEMORY = 0.7
"""Weight of what was known of a sequence when a verification tells more."""


@dataclass(slots=True, eq=False)
class DraftState:
    """What speculation keeps of one sequence. The bytes are one verification each."""

    index: NgramIndex
    num_spec_tokens: int
    drafted: bytearray = field(default_factory=bytearray)
    accepted: bytearray = field(default_factory=bytearray)
    num_judged: int = 0
    """Verifications that the fields below have taken into account."""
    trust: float = 0.5
    """Share of guessed tokens that were right lately."""
    rest: int = 0
    """Steps without a guess that are still to come."""
    misses: int = 0
    """Guesses in a row of which nothing was accepted."""

    def judge(self) -> None:
        """Learn from the newest verification, once."""
        if self.num_judged == len(self.accepted):
            return
        self.num_judged = len(self.accepted)
        self.trust = _MEMORY * self.trust + (1 - _MEMORY) * self.accepted[-1] / self.drafted[-1]
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

    def __init__(self, options: NgramOptions, costs: StepCosts = MEMORY_BOUND) -> None:
        self._options = options
        self.costs = costs
        self.figures = DraftFigures(accepted_per_position=[0] * options.num_speculative_tokens)

    def new_state(self) -> DraftState:
        """For a sequence without output."""
        options = self._options
        return DraftState(NgramIndex(options.lookup_min, options.lookup_max), options.num_speculative_tokens)

    def guess(self, sequences: Seq[Sequence], max_rows: int) -> dict[Sequence, list[int]]:
        """Guesses for some of the `sequences`, which have a row of the step each; with those at most `max_rows`."""
        num_rows = len(sequences)
        if num_rows >= max_rows:
            return {}
        token_cost = self.costs.of(num_rows) / num_rows
        price = self.costs.of_one_more(num_rows) / token_cost
        if price > MAX_PRICE:
            return {}
        offers: list[tuple[float, int, Sequence]] = []
        drafts: dict[Sequence, list[int]] = {}
        for sequence in sequences:
            draft, likely = self.propose(sequence)
            if draft and sequence.drafts is not None:
                drafts[sequence] = draft
                trust = sequence.drafts.trust
                offers += [(likely * trust**place, place, sequence) for place in range(len(draft))]
        offers.sort(key=lambda offer: -offer[0])  # stable: a sequence's offers stay in the order of its draft
        taken: dict[Sequence, list[int]] = {}
        for estimate, place, sequence in offers[: max_rows - num_rows]:
            if estimate * token_cost < self.costs.of_one_more(num_rows):
                break
            num_rows += 1
            taken[sequence] = drafts[sequence][: place + 1]
        return taken

    def propose(self, sequence: Sequence) -> tuple[list[int], float]:
        """What may follow the newest token, and how likely its first token is right; never beyond `max_tokens`.

        A match of full length is tried whatever was before: that is how trust is won back, and rests keep it rare.
        """
        state = sequence.drafts
        if state is None:
            return [], 0.0
        state.judge()
        if state.rest > 0:
            state.rest -= 1
            return [], 0.0
        # The step gives one token more than it guesses right.
        limit = min(state.num_spec_tokens, sequence.request.max_tokens - sequence.num_output - 1)
        if limit <= 0:
            return [], 0.0
        state.index.extend(sequence.token_ids[len(state.index) :])
        draft, agreement = state.index.guess(limit)
        return draft, 1.0 if agreement >= self._options.lookup_max else state.trust

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
