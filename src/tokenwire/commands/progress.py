"""What a person at a terminal sees while the model loads; nothing where nobody looks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from tokenwire.engine.base import Engine
from tokenwire.settings import Settings


@contextlib.contextmanager
def loading(settings: Settings, engine: Engine) -> Iterator[None]:
    """A moving line with the time passed, on a terminal that has rich; gone when the engine is up."""
    console_class = _console() if sys.stderr.isatty() else None
    if console_class is None:
        yield
        return
    name = settings.model.model or "the default model"
    with console_class(stderr=True).status(f"Loading {name} into the {settings.model.engine} engine ..."):
        yield


def _console():  # type: ignore[no-untyped-def]
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console
