"""`tokenwire serve [MODEL]`: settings, engine, server, and the line that says where it is."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence

from tokenwire import __version__
from tokenwire.settings import Settings, SettingsError, load, make_parser
from tokenwire.settings.sources import fail

logger = logging.getLogger("tokenwire")

PROG = "tokenwire serve"
START_FAILED = 1


def run(argv: Sequence[str]) -> int:
    """Serve until told to stop. Exit codes: 0 stopped, 1 the engine did not start, 2 a bad setting."""
    return run_with(PROG, "Serve a model by token ids.", argv, with_engine=True)


def run_with(prog: str, description: str, argv: Sequence[str], *, with_engine: bool) -> int:
    """What `serve` and `render` share: settings to a running process."""
    try:
        loaded = load(make_parser(prog, description), argv, os.environ)
        # Only now: `--help` and a misspelt flag answer without loading a web server.
        from tokenwire.commands import logs, runtime

        logs.configure(loaded.settings.logs)
        for note in loaded.notes:
            logger.warning(note)
        return runtime.run(loaded.settings, with_engine=with_engine, on_ready=_announce)
    except SettingsError as exc:
        fail(prog, exc)


def _announce(settings: Settings, address: str, name: str, with_engine: bool) -> None:
    if not with_engine:
        sys.stdout.write(f"tokenwire {__version__} renders for {name} at {address} (docs: {address}/docs)\n")
    else:
        body = json.dumps({"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8}})
        key = " -H 'Authorization: Bearer KEY'" if settings.access.api_key else ""
        target = f"{address}/inference/v1/generate"
        if settings.network.uds is not None:
            target = f"--unix-socket {settings.network.uds} http://localhost/inference/v1/generate"
        sys.stdout.write(
            f"tokenwire {__version__} serves {name} at {address} · try: "
            f"curl -s {target}{key} -H 'Content-Type: application/json' -d '{body}'\n"
        )
        if settings.model.engine == "remote" and settings.model.tokenizer is None:
            sys.stdout.write("Ids in, ids out: text, chats and stop strings need --tokenizer FOLDER.\n")
    sys.stdout.flush()
