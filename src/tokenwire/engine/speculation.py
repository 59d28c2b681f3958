"""Speculative-decoding figures of one sequence, from what other engines count of it."""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire.engine.base import SpecDecodeStats


def spec_stats(
    num_spec_tokens: int,
    histogram: Sequence[int],
    num_draft_tokens: int,
    per_step_accepted: list[int] | None,
    per_step_drafted: list[int] | None,
) -> SpecDecodeStats:
    """Per step where that was counted; else `histogram[a]` steps that accepted `a` tokens each, in no true order."""
    if per_step_accepted and per_step_drafted:
        return SpecDecodeStats(num_spec_tokens, per_step_drafted, per_step_accepted)
    accepted = [count for count, steps in enumerate(histogram) for _ in range(steps)]
    drafted = []
    left = num_draft_tokens
    for steps_left in range(len(accepted), 0, -1):
        drafted.append(min(num_spec_tokens, -(-left // steps_left)))
        left -= drafted[-1]
    return SpecDecodeStats(num_spec_tokens, drafted, accepted)
