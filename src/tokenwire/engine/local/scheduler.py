"""Which tokens are computed in the next step. Knows sequences and blocks, no tensors and no sampling.

Every step is a list of chunks: a running sequence that has all but its newest token computed gets a chunk of one
(decode), one that lacks more gets as much as the token budget leaves (prefill). When a decode finds no free block the
least urgent running sequence gives its blocks back and waits again; its tokens stay and are recomputed. Since the pool
holds at least one sequence of the maximum length, the most urgent one can always go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.local.blocks import BlockPool, block_hash, media_key
from tokenwire.engine.local.requests import Sequence, SequenceState
from tokenwire.engine.local.waiting import make_queue, urgency
from tokenwire.wire.media import MultiModalFeatures

if TYPE_CHECKING:
    from tokenwire.engine.local.speculation import Drafter
    from tokenwire.engine.local.transfer.client import Received


@dataclass(slots=True, frozen=True)
class SchedulerConfig:
    """Limits of a step and of the batch. Lengths in tokens."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_score_rows: int = 256
    """Prompt positions whose scores are wanted, per step: bounds the [rows, vocab] logits."""
    policy: Literal["fcfs", "priority"] = "priority"


@dataclass(slots=True)
class Chunk:
    """Compute `num_tokens` tokens of `sequence` from its `num_computed` on."""

    sequence: Sequence
    num_tokens: int
    score_start: int = 0
    score_stop: int = 0
    """Positions whose logits score the prompt, half open; empty for most."""
    draft: Seq[int] = ()
    """Guesses of the tokens that follow, to be computed along with a decode; they are no part of the sequence yet."""

    @property
    def num_rows(self) -> int:
        """Tokens to compute, guesses included."""
        return self.num_tokens + len(self.draft)

    @property
    def samples(self) -> bool:
        """The chunk reaches the newest token, so the next one is sampled from its logits."""
        return self.num_tokens == self.sequence.num_to_compute


@dataclass(slots=True)
class Arrival:
    """An admitted sequence whose blocks after `num_known` are to be filled with those that were received."""

    sequence: Sequence
    received: Received
    num_known: int


class Scheduler:
    """Continuous batching over one block pool. `block_tables` [max_num_seqs, blocks] has a row per running sequence."""

    def __init__(self, config: SchedulerConfig, pool: BlockPool, drafter: Drafter | None = None) -> None:
        if pool.num_blocks * pool.block_size < config.max_model_len:
            raise ValueError("the pool must hold one sequence of max_model_len")
        self.config = config
        self.pool = pool
        self.drafter = drafter
        self.waiting = make_queue(config.policy)
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        width = -(-config.max_model_len // pool.block_size)
        self.block_tables: NDArray[np.int32] = np.zeros((config.max_num_seqs, width), dtype=np.int32)
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self.epoch = 0
        """How often the prefix cache has been dropped."""
        self.arrivals: list[Arrival] = []

    # --- life of a sequence ---------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def add(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        self.waiting.push(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> tuple[int, int] | None:
        """Let `child` run on `parent`'s prompt without computing it again.

        Full blocks are shared. Returns `(source, target)` of the block whose content must be copied, `(-1, -1)` if
        the prompt ends on a block border, or None if there is no room: the child then waits like any other.
        """
        size = self.pool.block_size
        shared = parent.blocks[: parent.num_prompt // size]
        partial = parent.num_prompt % size != 0
        if not self._free_rows or self.pool.num_free < int(partial):
            return None
        self.pool.hold(shared)
        copy = (-1, -1)
        blocks = list(shared)
        if partial:
            blocks += self.pool.allocate(1)
            copy = (parent.blocks[len(shared)], blocks[-1])
        child.num_computed = parent.num_prompt
        child.num_registered = len(shared)
        child.is_cacheable = parent.is_cacheable
        self._start(child, blocks)
        return copy

    def finish(self, sequence: Sequence) -> None:
        """Release what the sequence holds, in whatever state it is."""
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            self._stop(sequence)
        sequence.state = SequenceState.FINISHED

    def preempt_all(self) -> None:
        """Send everything that runs back to wait, first arrived first; it will be recomputed."""
        for sequence in reversed(list(self.running)):
            self._preempt(sequence)

    def drop_prefix_cache(self, *, recompute_running: bool) -> bool:
        """Forget all known prefixes. Returns whether no running sequence still stands on the old content."""
        if recompute_running:
            self.preempt_all()
        self.pool.forget_all()
        self.epoch += 1
        for sequence in self.running:
            sequence.is_cacheable = False
        for sequence in self.waiting:
            sequence.request.received = None
        return not self.running

    # --- one step -------------------------------------------------------------------------------------------------

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step; empty when nothing can run."""
        return _StepPlan(self).fill()

    def advance(self, chunks: Iterable[Chunk]) -> None:
        """The chunks have been computed; full blocks become known to the prefix cache."""
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.state is SequenceState.RUNNING:
                sequence.num_computed += chunk.num_tokens
                self._register(sequence)

    def keep_guess(self, sequence: Sequence) -> None:
        """The guess after the computed tokens was right: it is one of them now."""
        sequence.num_computed += 1
        self._register(sequence)

    def cached_blocks(self, sequence: Sequence) -> list[int]:
        """Known blocks that the sequence may start from: never its last token, never a position with scores."""
        if not self.pool.caching or sequence.request.params.skip_reading_prefix_cache:
            return []
        return self.pool.find(sequence.hashes_of(self.num_reusable(sequence), self.pool.block_size))

    def num_reusable(self, sequence: Sequence) -> int:
        """Leading full blocks that need not be computed if somebody has them."""
        usable = len(sequence.token_ids) - 1
        scores = sequence.request.scores
        if sequence.index == 0 and scores is not None and not scores.done:
            usable = min(usable, scores.next_position)
        return usable // self.pool.block_size

    def num_cached(self, prompt: list[int], root: bytes, features: MultiModalFeatures | None) -> int:
        """How many leading tokens of a prompt the cache holds, whole blocks and never the last token."""
        if not self.pool.caching:
            return 0
        size = self.pool.block_size
        parent, hashes = root, []
        for start in range(0, (len(prompt) - 1) // size * size, size):
            parent = block_hash(parent, prompt[start : start + size], media_key(features, start, start + size))
            hashes.append(parent)
        return len(self.pool.find(hashes)) * size

    def _register(self, sequence: Sequence) -> None:
        full = sequence.num_computed // self.pool.block_size
        if full <= sequence.num_registered or not self.pool.caching or not sequence.is_cacheable:
            return
        hashes = sequence.hashes_of(full, self.pool.block_size)
        for index in range(sequence.num_registered, full):
            self.pool.register(sequence.blocks[index], hashes[index])
        sequence.num_registered = full

    # --- bookkeeping ----------------------------------------------------------------------------------------------

    def _start(self, sequence: Sequence, blocks: list[int]) -> None:
        sequence.row = self._free_rows.pop()
        sequence.blocks = []
        self._extend(sequence, blocks)
        sequence.state = SequenceState.RUNNING
        self.running.append(sequence)

    def _extend(self, sequence: Sequence, blocks: list[int]) -> None:
        start = len(sequence.blocks)
        self.block_tables[sequence.row, start : start + len(blocks)] = blocks
        sequence.blocks += blocks

    def _stop(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        self._free_rows.append(sequence.row)
        sequence.blocks = []
        sequence.row = -1
        sequence.num_computed = 0
        sequence.num_registered = 0
        sequence.is_cacheable = True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._stop(sequence)
        sequence.state = SequenceState.WAITING
        self.waiting.push_back(sequence)
        self.num_preemptions += 1

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Blocks for the next `num_tokens`; preempts less urgent sequences. False if the sequence itself had to go."""
        missing = -(-(sequence.num_computed + num_tokens) // self.pool.block_size) - len(sequence.blocks)
        if missing <= 0:
            return True
        while self.pool.num_free < missing:
            victim = self._least_urgent()
            self._preempt(victim)
            if victim is sequence:
                return False
        self._extend(sequence, self.pool.allocate(missing))
        return True

    def _spare_slots(self, sequence: Sequence) -> int:
        """How many guesses find slots behind the newest token; nobody is preempted or held up for them."""
        num_blocks = len(sequence.blocks) + max(0, self.pool.num_free - len(self.running))
        return num_blocks * self.pool.block_size - sequence.num_computed - 1

    def _least_urgent(self) -> Sequence:
        return max(self.running, key=urgency) if self.config.policy == "priority" else self.running[-1]

    def _admit(self, sequence: Sequence) -> bool:
        """Start the head of the queue if its tokens so far find room; blocks for all of them are taken at once."""
        if not self._free_rows:
            return False
        known = self.cached_blocks(sequence)
        needed = -(-len(sequence.token_ids) // self.pool.block_size) - len(known)
        if self.pool.num_free_without(known) < needed:
            return False
        self.waiting.pop()
        self.pool.hold(known)
        sequence.num_computed = self._receive(sequence, len(known)) * self.pool.block_size
        sequence.num_registered = len(known)
        self._start(sequence, known + self.pool.allocate(needed))
        if sequence.request.num_cached_tokens is None:
            sequence.request.num_cached_tokens = sequence.num_computed
            self.prefix_queries += sequence.num_prompt
            self.prefix_hits += len(known) * self.pool.block_size
        return True

    def _receive(self, sequence: Sequence, num_known: int) -> int:
        """Leading blocks that need not be computed, counting those that came from another engine."""
        received, sequence.request.received = sequence.request.received, None
        if received is None:
            return num_known
        self.arrivals.append(Arrival(sequence, received, num_known))
        return received.extend(num_known)


class _StepPlan:
    """One pass over running, then waiting sequences, while token budget and score rows last."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._budget = scheduler.config.max_num_batched_tokens
        self._score_rows = scheduler.config.max_score_rows
        self._chunks: list[Chunk] = []

    def fill(self) -> list[Chunk]:
        preemptions = self._scheduler.num_preemptions
        self._fill_running()
        if self._scheduler.num_preemptions == preemptions:
            self._fill_waiting()
        return [c for c in self._chunks if c.sequence.state is SequenceState.RUNNING]

    def _fill_running(self) -> None:
        scheduler = self._scheduler
        order = sorted(scheduler.running, key=urgency) if scheduler.config.policy == "priority" else scheduler.running
        # Decodes first: a long prompt takes what they leave, instead of stalling every stream.
        prefills = [s for s in order if s.num_to_compute > 1]
        self._fill_with([s for s in order if s.num_to_compute == 1])
        if scheduler.drafter is not None and self._chunks:
            self._guess(scheduler.drafter)
        self._fill_with(prefills)

    def _fill_with(self, sequences: Iterable[Sequence]) -> None:
        scheduler = self._scheduler
        for sequence in sequences:
            if self._budget == 0:
                return
            if sequence.state is not SequenceState.RUNNING:  # preempted a moment ago, for a more urgent one
                continue
            chunk = self._chunk(sequence)
            if chunk is not None and scheduler._grow(sequence, chunk.num_tokens):
                self._take(chunk)

    def _guess(self, drafter: Drafter) -> None:
        """Give decodes guesses of what follows, within the budget and the slots that are left."""
        scheduler = self._scheduler
        plain = {c.sequence: c for c in self._chunks if c.sequence.state is SequenceState.RUNNING}
        for sequence, draft in drafter.guess(list(plain), len(plain) + self._budget).items():
            chunk = plain[sequence]
            chunk.draft = draft[: scheduler._spare_slots(sequence)]
            scheduler._grow(sequence, chunk.num_rows)
            self._budget -= len(chunk.draft)

    def _fill_waiting(self) -> None:
        scheduler = self._scheduler
        while self._budget > 0:
            sequence = scheduler.waiting.peek()
            if sequence is None or not scheduler._admit(sequence):
                return
            chunk = self._chunk(sequence)
            if chunk is not None:
                self._take(chunk)

    def _take(self, chunk: Chunk) -> None:
        self._budget -= chunk.num_tokens
        self._score_rows -= chunk.score_stop - chunk.score_start
        self._chunks.append(chunk)

    def _chunk(self, sequence: Sequence) -> Chunk | None:
        """As much of the sequence as budget and score rows allow; None if that is nothing."""
        start = sequence.num_computed
        count = min(sequence.num_to_compute, self._budget)
        scores = sequence.request.scores
        if scores is None or scores.done or sequence.index != 0:
            return Chunk(sequence, count)
        first, stop = scores.rows_in(start, start + count)
        if stop - first > self._score_rows:
            stop = first + self._score_rows
            count = stop - start
        return Chunk(sequence, count, first, stop) if count > 0 else None
