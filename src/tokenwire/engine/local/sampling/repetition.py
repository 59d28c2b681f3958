"""Repetition detection: does the tail of a sequence repeat one pattern?"""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire.wire.sampling import RepetitionDetection


def has_repetition(token_ids: Sequence[int], rule: RepetitionDetection, *, start: int = 0) -> bool:
    """True if the last tokens are some pattern, `min_count` times in a row.

    Patterns are min_pattern_size (at least 1) to max_pattern_size tokens long. The rule is vLLM's; it looks at output
    tokens only, which begin at `start`. The caller asks it after every token once `min_tokens` is reached, after EOS,
    stop ids and length. Costs one comparison a pattern size unless something does repeat.
    """
    shortest = max(rule.min_pattern_size, 1)
    if rule.max_pattern_size <= 0 or rule.min_count < 2:
        return False
    end = len(token_ids)
    longest = min(rule.max_pattern_size, (end - start) // rule.min_count)
    return any(_repeats(token_ids, end, size, rule.min_count) for size in range(shortest, longest + 1))


def _repeats(token_ids: Sequence[int], end: int, size: int, count: int) -> bool:
    # A run with period `size` over size*count tokens: each token equals the one a period before it.
    if token_ids[end - 1] != token_ids[end - 1 - size]:
        return False
    return all(token_ids[i] == token_ids[i - size] for i in range(end - 2, end - size * (count - 1) - 1, -1))
