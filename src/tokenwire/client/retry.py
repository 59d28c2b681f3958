"""When a call is sent again: only where the server cannot have begun it, and only when the caller asked for that."""

from __future__ import annotations

from dataclasses import dataclass

from tokenwire.client.errors import ConnectError, ReplyError
from tokenwire.errors import TokenwireError

_FIRST_WAIT_S = 0.1


@dataclass(slots=True, frozen=True)
class Retry:
    """Up to `retries` further attempts after a failed connect, or after a 503 that carries `Retry-After`.

    Nothing else is repeated: a lost connection or a timeout may have left the request running.
    """

    retries: int = 0
    max_wait_s: float = 60.0
    """A longer wait than this is not waited for; the error is raised instead."""

    def wait_s(self, error: TokenwireError, attempt: int) -> float | None:
        """Seconds to wait before the next attempt, None to give up. `attempt` counts from 0."""
        if attempt >= self.retries:
            return None
        if isinstance(error, ConnectError):
            return float(min(self.max_wait_s, _FIRST_WAIT_S * 2**attempt))
        if isinstance(error, ReplyError) and error.status == 503 and error.retry_after_s >= 0:
            return float(error.retry_after_s) if error.retry_after_s <= self.max_wait_s else None
        return None
