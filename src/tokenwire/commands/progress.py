"""What a person sees while the model loads: a bar on a terminal, a log line per stage elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

logger = logging.getLogger("tokenwire")


class LoadProgress:
    """Hears what is being done and the fraction done, from any thread; shows it inside `shown()`."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._stages: dict[str, int] = {}

    def __call__(self, stage: str, fraction: float) -> None:
        if self._bars is None:
            if stage not in self._stages:
                self._stages[stage] = len(self._stages)
                logger.info("%s ...", stage)
            return
        if stage not in self._stages:
            self._finish_others()
            self._stages[stage] = self._bars.add_task(stage, total=1.0)
        self._bars.update(self._stages[stage], completed=fraction)  # type: ignore[arg-type]

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draws on a terminal where rich is installed, and leaves no trace afterwards."""
        bars = _bars() if sys.stderr.isatty() else None
        if bars is None:
            yield
            return
        with bars:
            self._bars = bars
            try:
                yield
            finally:
                self._bars = None

    def _finish_others(self) -> None:
        assert self._bars is not None
        for task in self._bars.tasks:
            self._bars.update(task.id, completed=1.0)


def _bars() -> Progress | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        return None
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
