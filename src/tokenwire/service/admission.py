"""How many sequences and prompt tokens may be under way; the rest is told to come back later."""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire.errors import OverloadedError


class Admission:
    """Counts what is in flight in this process. Sequences: waiting or running; tokens: of prompts not yet prefilled."""

    def __init__(self, max_seqs: int | None, max_tokens: int | None) -> None:
        self._max_seqs = max_seqs
        self._max_tokens = max_tokens
        self.num_seqs = 0
        self.num_prefill_tokens = 0

    def check(self, n: int) -> None:
        """Raises `OverloadedError` when `n` more sequences do not fit."""
        self._compare(n, self.num_seqs, self.num_prefill_tokens)

    def _compare(self, n: int, num_seqs: int, num_tokens: int) -> None:
        """Do `n` sequences fit beside so many that are there?"""
        if self._max_seqs is not None and num_seqs + n > self._max_seqs:
            advice = "Try again later." if n <= self._max_seqs else "It never takes that many: ask for a smaller n."
            raise OverloadedError(
                f"The server holds {num_seqs} sequences and takes at most {self._max_seqs} "
                f"(--max-num-queued-reqs); this request needs {n}. {advice}"
            )
        if self._max_tokens is not None and num_tokens >= self._max_tokens:
            raise OverloadedError(
                f"{num_tokens} prompt tokens wait for prefill, at most {self._max_tokens} may "
                "(--max-num-queued-tokens). Try again later."
            )

    def enter_all(self, sizes: Sequence[tuple[int, int]]) -> list[Ticket]:
        """Count requests in, which are sequences and prompt tokens, all or none. Raises as `check` does."""
        self.check(sum(n for n, _ in sizes))
        return [self.enter(n, prompt_len) for n, prompt_len in sizes]

    def enter(self, n: int, prompt_len: int) -> Ticket:
        """Count a request in, whether or not it fits; the ticket counts it out."""
        self.num_seqs += n
        self.num_prefill_tokens += prompt_len
        return Ticket(self, n, prompt_len)


class Ticket:
    """One request's share. Both methods may be called again without effect; one that is dropped leaves by itself."""

    __slots__ = ("_admission", "_n", "_prompt_len")

    def __init__(self, admission: Admission, n: int, prompt_len: int) -> None:
        self._admission = admission
        self._n = n
        self._prompt_len = prompt_len

    def prefilled(self) -> None:
        self._admission.num_prefill_tokens -= self._prompt_len
        self._prompt_len = 0

    def leave(self) -> None:
        self.prefilled()
        self._admission.num_seqs -= self._n
        self._n = 0

    def __del__(self) -> None:
        # A request that is ready may never run: another of its group is refused, or its client leaves.
        if self._n:
            self.leave()
