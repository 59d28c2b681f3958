"""Request fields that nobody here knows: tolerated as upstream does, but never in silence."""

from __future__ import annotations

import logging
from collections import Counter

from tokenwire.errors import BodyValidationError

logger = logging.getLogger(__name__)

MAX_LOGGED = 1000
"""Names told apart; callers choose them, so there is a bound."""


class UnknownFields:
    """Counts each name, logs it once, or refuses it where that was asked for."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.counts: Counter[str] = Counter()

    def note(self, names: tuple[str, ...], *, refused_prefix: str | None = None) -> None:
        """`names` are dotted. Raises `BodyValidationError` when strict, or for names under `refused_prefix`."""
        refused = names if self._strict else ()
        if refused_prefix is not None:
            refused = refused or tuple(name for name in names if name.startswith(refused_prefix))
        if refused:
            raise BodyValidationError([(f"body.{name}", "Extra inputs are not permitted") for name in refused])
        for name in names:
            if name not in self.counts and len(self.counts) < MAX_LOGGED:
                logger.warning("Unknown request field %r is ignored (logged once; --strict-fields refuses it).", name)
            if name in self.counts or len(self.counts) < MAX_LOGGED:
                self.counts[name] += 1
