"""One worker: its connections, its facts, whether it is well, how much it has to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tokenwire.engine.remote.dialects.base import Dialect, WorkerFacts
from tokenwire.engine.remote.http import ConnectError, HttpClient, TransportError
from tokenwire.engine.remote.options import RemoteOptions
from tokenwire.errors import TokenwireError

logger = logging.getLogger(__name__)


class Worker:
    """State of one worker. `is_up` is as of the last check or call."""

    def __init__(self, url: str, dialect: Dialect, options: RemoteOptions) -> None:
        headers = {"authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        self.url = url
        self.dialect = dialect
        self.client = HttpClient(url, headers=headers, connect_timeout_s=options.connect_timeout_s)
        self.facts: WorkerFacts | None = None
        self.is_up = False
        self.num_running = 0
        """Sequences that it works on for us."""
        self.objection: Callable[[WorkerFacts], str | None] = lambda facts: None
        """Says why a worker with these facts does not fit to the others; None: it fits."""
        self._options = options
        self._num_failures = 0
        self._reason = ""
        self._answered_at = time.monotonic()

    def __repr__(self) -> str:
        return f"Worker({self.url!r})"

    @property
    def told(self) -> WorkerFacts:
        """Its facts, once it has been up."""
        assert self.facts is not None
        return self.facts

    async def check(self) -> bool:
        """Ask whether it is well, and for its facts the first time. Never raises."""
        options = self._options
        try:
            status, _ = await self.client.fetch("GET", self.dialect.health_path, timeout_s=options.health_timeout_s)
            if status != 200:
                self._failed(f"its health check answers {status}", at_once=True)
                return False
            if self.facts is None:
                facts = await self.dialect.learn(self.client)
                objection = self.objection(facts)
                if objection is not None:
                    self._failed(objection, at_once=True)
                    return False
                self.facts = facts
        except TransportError as exc:
            self._failed(str(exc), at_once=isinstance(exc, ConnectError))
            return False
        except TokenwireError as exc:
            self._failed(exc.message, at_once=True)
            return False
        if not self.is_up:
            logger.info("Worker %s is up.", self.url)
        self.is_up = True
        self._num_failures = 0
        self._answered_at = time.monotonic()
        return True

    def suspect(self, reason: str) -> None:
        """A request failed on it: no new ones until a check says that it is well."""
        self._failed(reason, at_once=True)

    def _failed(self, reason: str, *, at_once: bool) -> None:
        self._num_failures += 1
        if not self.is_up and self._reason != reason:
            logger.info("Worker %s is not up: %s.", self.url, reason)
        self._reason = reason
        if self.is_up and (at_once or self._num_failures >= self._options.unhealthy_after):
            logger.warning("Worker %s is not used: %s.", self.url, reason)
            self.is_up = False
        if time.monotonic() - self._answered_at >= self._options.abandon_after_s:
            self.client.drop_busy()  # it hangs: what waits for it goes elsewhere, or ends with an error

    def close(self) -> None:
        self.client.close()
