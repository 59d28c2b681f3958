"""Results to numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from tokenwire.bench.load import LevelRun
from tokenwire.bench.options import BenchOptions


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class LevelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One level. Rates count the whole level, from its first request to its last answer."""

    concurrency: int
    request_rate: float | None
    num_requests: int
    num_failed: int
    failures: dict[str, int]
    num_short: int
    """Answers with fewer tokens than asked for."""
    wall_s: float
    requests_per_s: float
    input_tok_per_s: float
    output_tok_per_s: float
    ttft_ms: Spread | None
    """Time to first token; None when not streamed."""
    itl_ms: Spread | None
    """Inter-token latency, over all tokens after a request's first chunk."""
    tpot_ms: Spread | None
    """Time per output token after the first, one value a request."""
    e2e_ms: Spread | None
    generator_cpu: float
    """Cores that the load generator itself used; near 1.0 it is the generator that was measured."""


def summarise(run: LevelRun, options: BenchOptions) -> LevelSummary:
    good = [result for result in run.results if result.failure is None]
    timed = [(r, r.first) for r in good if r.first is not None]
    output_tokens = sum(result.num_tokens for result in good)
    gaps = [np.frombuffer(result.gaps, np.float64) for result in good if result.gaps]
    return LevelSummary(
        concurrency=run.concurrency,
        request_rate=options.request_rate,
        num_requests=len(run.results),
        num_failed=len(run.results) - len(good),
        failures=dict(Counter(r.failure for r in run.results if r.failure is not None)),
        num_short=sum(result.num_tokens < options.shape.output_len for result in good),
        wall_s=run.wall_s,
        requests_per_s=len(good) / run.wall_s,
        input_tok_per_s=len(good) * options.shape.prompt_len / run.wall_s,
        output_tok_per_s=output_tokens / run.wall_s,
        ttft_ms=_spread([first - r.start for r, first in timed]),
        itl_ms=_spread(np.concatenate(gaps) if gaps else []),
        tpot_ms=_spread([(r.end - first) / (r.num_tokens - 1) for r, first in timed if r.num_tokens > 1]),
        e2e_ms=_spread([result.end - result.start for result in good]),
        generator_cpu=run.cpu_s / run.wall_s,
    )


def _spread(seconds: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> Spread | None:
    values = np.asarray(seconds, np.float64) * 1000
    if not len(values):
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Spread(mean=float(values.mean()), p50=p50, p90=p90, p99=p99, max=float(values.max()))
