"""`tokenwire render [MODEL]`: the same server without an engine; loads a tokenizer, no torch."""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire.commands.serve import run_with


def run(argv: Sequence[str]) -> int:
    """Serve until told to stop. Exit codes as `serve`."""
    return run_with("tokenwire render", "Render and derender for token-only servers.", argv, with_engine=False)
