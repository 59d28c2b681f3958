"""Where log lines go and what they look like: one handler on stderr for us and for the libraries."""

from __future__ import annotations

import logging
import sys

from tokenwire.settings import LogSettings

FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"


class _WithoutPaths(logging.Filter):
    """Drops access-log lines of given paths; uvicorn's records carry (client, method, path, version, status)."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__()
        self._paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        return not (isinstance(args, tuple) and len(args) == 5 and str(args[2]).partition("?")[0] in self._paths)


def configure(settings: LogSettings) -> None:
    """Set up logging for the process."""
    logging.basicConfig(
        level=settings.log_level.upper(), format=FORMAT, datefmt="%m-%d %H:%M:%S", stream=sys.stderr, force=True
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    access = logging.getLogger("uvicorn.access")
    access.setLevel(logging.WARNING if settings.disable_uvicorn_access_log else logging.INFO)
    if settings.disable_access_log_for_endpoints:
        access.addFilter(_WithoutPaths(settings.disable_access_log_for_endpoints))
    logging.getLogger("httpx").setLevel(logging.WARNING)
