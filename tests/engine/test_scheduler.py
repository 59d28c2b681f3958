"""Blocks and schedules, without a model.

1. Whatever happens, every block is held exactly as often as running sequences name it, and all are free at the end.
2. Everything that was admitted ends: no deadlock with the smallest possible pool.
3. A step keeps within its budgets, decodes go before prefills, and urgency decides who waits.
4. Blocks are shared only between equal prefixes under an equal root, and the least recently used are lost first.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenwire.engine.local.blocks import BlockPool, block_hash, media_key, root_hash
from tokenwire.engine.local.prompt_scores import PromptScores
from tokenwire.engine.local.requests import Request, RequestKey, Sequence, SequenceState
from tokenwire.engine.local.scheduler import Scheduler, SchedulerConfig
from tokenwire.engine.local.waiting import make_queue
from tokenwire.wire.media import MultiModalFeatures, PlaceholderRange
from tokenwire.wire.sampling import SamplingParams

MAX_LEN = 24


def new_request(
    prompt: list[int], *, n: int = 1, max_tokens: int = 6, priority: int = 0, arrival: int = 0, scores: bool = False
) -> Request:
    params = SamplingParams(n=n, max_tokens=max_tokens, prompt_logprobs=0 if scores else None)
    request = Request(
        key=RequestKey(b"", arrival),
        params=params,
        prompt_token_ids=prompt,
        max_tokens=min(max_tokens, MAX_LEN - len(prompt)),
        stream=True,
        stream_interval=1,
        priority=priority,
        arrival=arrival,
        root=root_hash(None, None),
        scores=PromptScores(params, len(prompt)) if scores else None,
    )
    request.sequences = [Sequence(request, i, list(prompt)) for i in range(n)]
    return request


class Simulation:
    """A core without a model: every sampled token is a random one of few, so that prefixes repeat."""

    def __init__(self, rnd: random.Random, config: SchedulerConfig, num_blocks: int, block_size: int) -> None:
        self.rnd = rnd
        self.pool = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(config, self.pool)
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        self.requests.append(request)
        self.scheduler.add(request.sequences[0])

    def step(self) -> None:
        scheduler = self.scheduler
        chunks = scheduler.schedule()
        config = scheduler.config
        assert sum(c.num_tokens for c in chunks) <= config.max_num_batched_tokens
        assert sum(c.score_stop - c.score_start for c in chunks) <= config.max_score_rows
        assert len(scheduler.running) <= config.max_num_seqs
        assert chunks or not scheduler.has_work, "work is left but nothing runs"
        self.check()
        sampled = [c.sequence for c in chunks if c.samples]
        for chunk in chunks:
            if chunk.score_stop > chunk.score_start:
                assert chunk.sequence.request.scores is not None
                chunk.sequence.request.scores.add(chunk.score_start, chunk.score_stop, None, None)
        scheduler.advance(chunks)
        for sequence in sampled:
            for child in sequence.request.sequences[1:] if sequence.index == 0 else ():
                if child.state is SequenceState.HELD:
                    if scheduler.fork(sequence, child) is None:
                        scheduler.add(child)
                    else:
                        self.token(child)
            self.token(sequence)
        self.check()

    def token(self, sequence: Sequence) -> None:
        sequence.token_ids.append(self.rnd.randrange(3))
        if sequence.num_output >= sequence.request.max_tokens:
            self.scheduler.finish(sequence)

    def abort(self, request: Request) -> None:
        for sequence in request.sequences:
            if sequence.state is not SequenceState.FINISHED:
                self.scheduler.finish(sequence)

    def check(self) -> None:
        held = Counter(block for s in self.scheduler.running for block in s.blocks)
        assert [held[b] for b in range(self.pool.num_blocks)] == self.pool._references
        assert self.pool.num_free == self.pool.num_blocks - len(held)
        assert self.scheduler.waiting.num_tokens == sum(s.num_to_compute for s in self.scheduler.waiting)
        for sequence in self.scheduler.running:
            assert sequence.num_computed <= len(sequence.token_ids)
            assert sequence.num_computed <= len(sequence.blocks) * self.pool.block_size
            row = self.scheduler.block_tables[sequence.row, : len(sequence.blocks)]
            assert row.tolist() == sequence.blocks


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(["fcfs", "priority"]),
    block_size=st.integers(1, 5),
    spare_blocks=st.integers(0, 12),
    max_num_seqs=st.integers(1, 6),
    budget=st.integers(1, 20),
)
def test_no_block_leaks_and_everything_ends(
    seed: int, policy: str, block_size: int, spare_blocks: int, max_num_seqs: int, budget: int
) -> None:
    rnd = random.Random(seed)
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=MAX_LEN,
        max_score_rows=3,
        policy="priority" if policy == "priority" else "fcfs",
    )
    simulation = Simulation(rnd, config, -(-MAX_LEN // block_size) + spare_blocks, block_size)
    for arrival in range(12):
        prompt = [rnd.randrange(2) for _ in range(rnd.randint(1, MAX_LEN - 1))]
        n = rnd.randint(1, min(3, max_num_seqs))
        request = new_request(prompt, n=n, priority=rnd.randint(-1, 1), arrival=arrival, scores=rnd.random() < 0.3)
        simulation.add(request)
        for _ in range(rnd.randint(0, 3)):
            simulation.step()
        event = rnd.random()
        if event < 0.2:
            simulation.abort(rnd.choice(simulation.requests))
        elif event < 0.3:
            simulation.scheduler.drop_prefix_cache(recompute_running=rnd.random() < 0.5)
        simulation.check()
    for _ in range(4000):
        if not simulation.scheduler.has_work:
            break
        simulation.step()
    assert all(
        request.is_done or any(s.state is SequenceState.HELD for s in request.sequences)
        for request in simulation.requests
    )
    assert simulation.pool.num_free == simulation.pool.num_blocks
    assert len(simulation.scheduler._free_rows) == max_num_seqs


def scheduler(num_blocks: int = 64, **config: object) -> Scheduler:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "max_model_len": MAX_LEN} | config
    return Scheduler(SchedulerConfig(**settings), BlockPool(num_blocks, 4))  # type: ignore[arg-type]


def test_a_long_prompt_takes_what_decodes_leave() -> None:
    s = scheduler()
    long, short = new_request([1] * 23).sequences[0], new_request([2] * 3, arrival=1).sequences[0]
    s.add(long)
    s.add(short)
    first = s.schedule()
    assert [(c.sequence, c.num_tokens) for c in first] == [(long, 16)]
    s.advance(first)
    second = s.schedule()
    assert [(c.sequence, c.num_tokens) for c in second] == [(long, 7), (short, 3)]
    s.advance(second)
    short.token_ids.append(9)
    s.preempt_all()
    s.drop_prefix_cache(recompute_running=True)
    third = s.schedule()
    assert [(c.sequence, c.num_tokens) for c in third] == [(long, 16)]
    s.advance(third)
    assert [(c.sequence, c.num_tokens) for c in s.schedule()] == [(long, 7), (short, 4)]


def test_decodes_go_before_chunks_of_a_prompt_that_came_earlier() -> None:
    s = scheduler(max_num_batched_tokens=6)
    long, short = new_request([1] * 23).sequences[0], new_request([2]).sequences[0]
    s.add(short)
    s.add(long)
    first = s.schedule()
    assert [(c.sequence, c.num_tokens) for c in first] == [(short, 1), (long, 5)]
    s.advance(first)
    short.token_ids.append(9)
    s.running.reverse()
    assert [(c.sequence, c.num_tokens) for c in s.schedule()] == [(short, 1), (long, 5)]


def test_the_least_urgent_sequence_gives_way_and_comes_back() -> None:
    s = scheduler(num_blocks=6, policy="priority")
    urgent, patient = new_request([1] * 8, priority=-1).sequences[0], new_request([2] * 16, arrival=1).sequences[0]
    s.add(patient)
    s.advance(s.schedule())
    s.add(urgent)
    patient_tokens = list(patient.token_ids)
    for _ in range(3):
        chunks = s.schedule()
        s.advance(chunks)
        for chunk in chunks:
            chunk.sequence.token_ids.append(3)
        s.advance([])
    assert urgent.state is SequenceState.RUNNING
    assert patient.state is SequenceState.WAITING
    assert s.num_preemptions == 1
    s.finish(urgent)
    (chunk,) = s.schedule()
    assert chunk.sequence is patient
    assert patient.token_ids[: len(patient_tokens)] == patient_tokens
    assert patient.num_computed == 12, "its own blocks were still known, but for the one the urgent sequence took"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_queue_gives_the_lowest_priority_first_and_equal_ones_in_order_of_arrival(seed: int) -> None:
    rnd = random.Random(seed)
    queue = make_queue(SchedulerConfig(4, 8, MAX_LEN).policy)
    plain: list[Sequence] = []
    for arrival in range(300):
        if rnd.random() < 0.6 or not plain:
            plain += new_request([1], priority=rnd.choice([0, 0, 1]), arrival=arrival).sequences
            queue.push(plain[-1])
        elif rnd.random() < 0.6:
            queue.remove(plain.pop(rnd.randrange(len(plain))))
        else:
            plain.remove(queue.pop())
        first = min(plain, key=lambda s: (s.request.priority, s.request.arrival), default=None)
        assert queue.peek() is first
        assert len(queue) == len(plain)
        assert {id(s) for s in queue} == {id(s) for s in plain}


def test_a_pool_that_cannot_hold_one_full_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="one sequence"):
        scheduler(num_blocks=5)


def test_hashes_tell_apart_prefix_salt_adapter_and_media() -> None:
    tokens = [1, 2, 3, 4]
    roots = {root_hash(None, None), root_hash("a", None), root_hash(None, "a"), root_hash("", None)}
    assert len(roots) == 4
    root = root_hash(None, None)
    image = media_key(
        MultiModalFeatures(
            mm_hashes={"image": ["h"]}, mm_placeholders={"image": [PlaceholderRange(offset=2, length=9)]}
        ),
        0,
        4,
    )
    assert image
    digests = {block_hash(root, tokens), block_hash(root, tokens, image), block_hash(root, tokens[::-1])}
    digests |= {block_hash(r, tokens) for r in roots}
    assert len(digests) == 6


def test_blocks_that_nobody_holds_stay_known_until_they_are_the_oldest() -> None:
    pool = BlockPool(4, 4)
    old, new = pool.allocate(1), pool.allocate(1)
    for block, digest in ((old, b"old"), (new, b"new")):
        pool.register(block[0], digest)
        pool.release(block)
    assert pool.find([b"old"]) == old
    pool.allocate(3)
    assert pool.find([b"old"]) == []
    assert pool.find([b"new"]) == new
