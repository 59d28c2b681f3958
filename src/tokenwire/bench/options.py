"""What one run does: where it goes, the shape of its requests, how many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestShape:
    """All requests of a run are alike but for their prompt's ids. Lengths in tokens."""

    prompt_len: int = 64
    output_len: int = 64
    shared_prefix_len: int = 0
    """The first ids of every prompt of the run are the same."""
    vocab_low: int = 100
    vocab_high: int = 30_000
    """Random ids are drawn from low..high (half open)."""
    seed: int = 0
    stream: bool = True
    logprobs: int | None = None
    temperature: float = 0.0
    ignore_eos: bool = True
    model: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class BenchOptions:
    base_url: str = "http://127.0.0.1:8000"
    shape: RequestShape = RequestShape()
    concurrency: Sequence[int] = (1, 8, 16)
    """One level of the run for each."""
    num_requests: int | None = None
    """Per level; None: four for each request at once, at least eight."""
    num_warmup: int | None = None
    """Before each level, not measured; None: as many as run at once."""
    request_rate: float | None = None
    """Mean arrivals per second (Poisson); None: as fast as answers come back."""
    timeout_s: float = 600.0
    headers: Mapping[str, str] = field(default_factory=dict)

    def requests_at(self, concurrency: int) -> int:
        return self.num_requests if self.num_requests is not None else max(8, 4 * concurrency)

    def warmup_at(self, concurrency: int) -> int:
        return self.num_warmup if self.num_warmup is not None else concurrency
