"""The state of a live request inside the core: one `Request` with one `Sequence` per sample."""

from __future__ import annotations

import enum
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.base import Logprobs, WeightSpan
from tokenwire.engine.local.blocks import block_hash, media_key
from tokenwire.engine.local.prompt_scores import PromptScores
from tokenwire.wire.media import MultiModalFeatures
from tokenwire.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from tokenwire.engine.local.speculation import DraftState
    from tokenwire.engine.local.transfer.client import Received
    from tokenwire.engine.local.transfer.params import TransferAsk


@dataclass(slots=True, frozen=True)
class RequestKey:
    """Names a request over all front ends: the front end's socket identity and its own number."""

    client: bytes
    handle: int


class SequenceState(enum.Enum):
    HELD = "held"
    """Until the first sample of its request has computed the prompt for all; that one, until grammar and blocks of
    another engine have come."""
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """What all sequences of one request share."""

    key: RequestKey
    params: SamplingParams
    prompt_token_ids: list[int]
    max_tokens: int
    stream: bool
    stream_interval: int
    priority: int
    arrival: int
    """Order of arrival; breaks ties of priority."""
    root: bytes
    features: MultiModalFeatures | None = None
    reasoning_ended: bool | None = None
    sequences: list[Sequence] = field(default_factory=list)
    scores: PromptScores | None = None
    num_cached_tokens: int | None = None
    prompt_computed: bool = False
    prompt_reported: bool = False
    transfer: TransferAsk | None = None
    received: Received | None = None
    """Blocks that another engine computed; until the first sequence is admitted."""
    kept: dict[str, Any] | None = None
    """The reply's kv_transfer_params, once blocks have been kept for another engine."""

    @property
    def is_done(self) -> bool:
        return all(s.state is SequenceState.FINISHED for s in self.sequences)


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request. `token_ids` is prompt and output; K/V of the first `num_computed` are in the cache."""

    request: Request
    index: int
    token_ids: list[int]
    state: SequenceState = SequenceState.HELD
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    """Of full blocks, as far as they have been needed."""
    row: int = -1
    """Row of the block table while running."""
    num_registered: int = 0
    """Leading blocks already offered to the prefix cache."""
    is_cacheable: bool = True
    """False once the prefix cache was dropped under it: its K/V must not become known again."""
    versions: list[tuple[str, int]] = field(default_factory=list)
    """Weight version and the first output token it made, in order."""
    num_sent: int = 0
    """Output tokens already sent to the front end."""
    held_logprobs: list[Logprobs] = field(default_factory=list)
    held_masks: list[NDArray[np.int32]] = field(default_factory=list)
    drafts: DraftState | None = None
    """None without speculative decoding."""

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def num_to_compute(self) -> int:
        return len(self.token_ids) - self.num_computed

    def hashes_of(self, num_blocks: int, block_size: int) -> Seq[bytes]:
        """Hashes of the first `num_blocks` full blocks, computing those not known yet."""
        while len(self.hashes) < num_blocks:
            start = len(self.hashes) * block_size
            stop = start + block_size
            parent = self.hashes[-1] if self.hashes else self.request.root
            media = media_key(self.request.features, start, stop)
            self.hashes.append(block_hash(parent, self.token_ids[start:stop], media))
        return self.hashes[:num_blocks]

    def label_token(self, version: str) -> None:
        """The newest output token was sampled by weights `version`."""
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, self.num_output - 1))

    def weight_spans(self) -> list[WeightSpan]:
        """Contiguous from 0 to the number of output tokens; empty when there are none."""
        stops = [start for _, start in self.versions[1:]] + [self.num_output]
        return [WeightSpan(v, start, stop) for (v, start), stop in zip(self.versions, stops, strict=False)]
