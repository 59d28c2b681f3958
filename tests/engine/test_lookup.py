"""What may follow, looked up; and a scheduler whose decodes carry guesses.

1. A guess is what followed the best earlier place: the one that agrees longest with the end, the newest of equals.
2. It does not matter in which pieces the index was fed, nor how often it grew.
3. A place so near that its continuation is the guess goes on as a period.
4. Blocks do not leak, budgets hold and everything ends, whatever is guessed and whatever of it is right.
5. Guesses take no block that another sequence could need for its next token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.test_scheduler import MAX_LEN, Simulation, new_request
from tokenwire.engine.local.options import NgramOptions
from tokenwire.engine.local.requests import Sequence
from tokenwire.engine.local.scheduler import SchedulerConfig
from tokenwire.engine.local.speculation import Drafter
from tokenwire.engine.local.speculation.lookup import MAX_LINKS, NgramIndex


def by_looking(ids: Seq[int], shortest: int, longest: int, count: int) -> tuple[list[int], int]:
    """The same rule, the plain way."""

    def agreement(place: int) -> int:
        length = 0
        while length < min(longest, place + 1) and ids[place - length] == ids[-1 - length]:
            length += 1
        return length

    places = range(len(ids) - 2, -1, -1)
    best = max(places, key=agreement, default=None)
    if best is None or agreement(best) < shortest:
        return [], 0
    extended = list(ids)
    for i in range(count):
        extended.append(extended[best + 1 + i])
    return extended[len(ids) :], agreement(best)


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 3), max_size=MAX_LINKS),
    shortest=st.integers(1, 4),
    extra=st.integers(0, 3),
    count=st.integers(1, 6),
    cuts=st.lists(st.integers(0, MAX_LINKS), max_size=4),
)
def test_a_guess_follows_the_longest_and_newest_match(
    ids: list[int], shortest: int, extra: int, count: int, cuts: list[int]
) -> None:
    index = NgramIndex(shortest, shortest + extra)
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(ids)], strict=True):
        index.extend(ids[start:stop])
    assert len(index) == len(ids)
    assert index.guess(count) == by_looking(ids, shortest, shortest + extra, count)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), alphabet=st.sampled_from([50, 50_000]))
def test_an_index_that_has_grown_finds_what_it_was_given_long_ago(seed: int, alphabet: int) -> None:
    rnd = random.Random(seed)
    ids = [rnd.randrange(alphabet) for _ in range(1500)]
    index = NgramIndex(2, 4)
    fed = 0
    while fed < len(ids):
        step = rnd.choice([1, 3, 400])
        index.extend(ids[fed : fed + step])
        fed += step
    start = rnd.randrange(100)
    index.extend([alphabet + 1, *ids[start : start + 4]])
    guess, agreement = index.guess(5)
    follow = {tuple(ids[i + 4 : i + 9]) for i in range(1490) if ids[i + 2 : i + 4] == ids[start + 2 : start + 4]}
    assert tuple(guess) in follow
    if alphabet > 1000:
        assert (guess, agreement) == (ids[start + 4 : start + 9], 4)


@pytest.mark.parametrize(
    ("ids", "guess"), [([7, 7, 7], [7, 7, 7, 7, 7]), ([9, 1, 2, 1, 2], [1, 2, 1, 2, 1]), ([1, 2, 3], []), ([], [])]
)
def test_a_period_goes_on(ids: list[int], guess: list[int]) -> None:
    index = NgramIndex(2, 4)
    index.extend(ids)
    assert index.guess(5)[0] == guess


class AnyDrafter(Drafter):
    """Guesses at random as often as not."""

    def __init__(self, rnd: random.Random) -> None:
        super().__init__(NgramOptions(num_speculative_tokens=6))
        self.rnd = rnd

    def guess(self, sequences: Seq[Sequence], max_rows: int) -> dict[Sequence, list[int]]:
        left = max_rows - len(sequences)
        drafts = {}
        for sequence in sequences:
            most = min(left, 6, sequence.request.max_tokens - sequence.num_output - 1)
            draft = [self.rnd.randrange(3) for _ in range(self.rnd.randint(0, max(0, most)))]
            left -= len(draft)
            if draft:
                drafts[sequence] = draft
        return drafts


class GuessingSimulation(Simulation):
    """Guesses are right where the random token happens to be the same."""

    def step(self) -> None:
        scheduler = self.scheduler
        chunks = scheduler.schedule()
        config = scheduler.config
        assert sum(c.num_rows for c in chunks) <= config.max_num_batched_tokens
        assert chunks or not scheduler.has_work
        drafted = [c for c in chunks if c.draft]
        for chunk in drafted:
            sequence = chunk.sequence
            assert chunk.num_tokens == sequence.num_to_compute == 1
            assert sequence.num_computed + chunk.num_rows <= len(sequence.blocks) * self.pool.block_size
            assert len(sequence.token_ids) + len(chunk.draft) < MAX_LEN
        self.check()
        scheduler.advance(chunks)
        for chunk in [c for c in chunks if c.sequence.num_to_compute == 0]:
            sequence = chunk.sequence
            self.token(sequence)
            for guess in chunk.draft:
                if sequence not in scheduler.running or sequence.token_ids[-1] != guess:
                    break
                scheduler.keep_guess(sequence)
                self.token(sequence)
        self.check()


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    block_size=st.integers(1, 5),
    spare_blocks=st.integers(0, 12),
    max_num_seqs=st.integers(1, 6),
    budget=st.integers(1, 20),
)
def test_with_guesses_no_block_leaks_and_everything_ends(
    seed: int, block_size: int, spare_blocks: int, max_num_seqs: int, budget: int
) -> None:
    rnd = random.Random(seed)
    config = SchedulerConfig(max_num_seqs, budget, MAX_LEN)
    simulation = GuessingSimulation(rnd, config, -(-MAX_LEN // block_size) + spare_blocks, block_size)
    simulation.scheduler.drafter = AnyDrafter(rnd)
    for arrival in range(12):
        prompt = [rnd.randrange(2) for _ in range(rnd.randint(1, MAX_LEN - 1))]
        simulation.add(new_request(prompt, priority=rnd.randint(-1, 1), arrival=arrival, max_tokens=12))
        for _ in range(rnd.randint(0, 3)):
            simulation.step()
        if rnd.random() < 0.2:
            simulation.abort(rnd.choice(simulation.requests))
        elif rnd.random() < 0.1:
            simulation.scheduler.drop_prefix_cache(recompute_running=rnd.random() < 0.5)
        simulation.check()
    for _ in range(4000):
        if not simulation.scheduler.has_work:
            break
        simulation.step()
    assert all(request.is_done for request in simulation.requests)
    assert simulation.pool.num_free == simulation.pool.num_blocks


def test_a_guess_takes_no_block_that_another_decode_could_need() -> None:
    simulation = GuessingSimulation(random.Random(0), SchedulerConfig(4, 32, MAX_LEN), 10, 4)
    scheduler = simulation.scheduler
    scheduler.drafter = AnyDrafter(random.Random(0))
    for arrival in range(2):
        scheduler.add(new_request([arrival] * 15, arrival=arrival, max_tokens=9).sequences[0])
    chunks = scheduler.schedule()
    scheduler.advance(chunks)
    for chunk in chunks:
        chunk.sequence.token_ids.append(2)
    assert simulation.pool.num_free == 2
    for _ in range(20):
        chunks = scheduler.schedule()
        assert all(len(c.draft) == 0 for c in chunks), "both slots of block four are taken; two blocks are left for two"
        assert scheduler.num_preemptions == 0
