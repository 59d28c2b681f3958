"""The core process: `python -m tokenwire.engine.local.core_main`, started by `process.CoreProcess`.

Its first line of standard input is a job (MessagePack, hex); when standard input ends the starter is gone and the
process ends too. On standard output it reports, one JSON object a line: progress, then ready or failed. Log lines and
whatever libraries print go to standard error.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO

import msgspec

from tokenwire.engine.local.link import CoreLink
from tokenwire.engine.local.options import Job
from tokenwire.errors import TokenwireError


def main() -> int:
    """Serve until standard input ends; returns 1 when it could not start."""
    started = time.monotonic()
    for wanted in (signal.SIGINT, signal.SIGTERM):
        # Meant for the server, which lets requests finish; terminals and service managers send it to all its processes.
        signal.signal(wanted, signal.SIG_IGN)
    reports = _claim_stdout()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s core: %(message)s", stream=sys.stderr)
    job = msgspec.msgpack.decode(bytes.fromhex(sys.stdin.readline()), type=Job)
    threading.Thread(target=_end_with_parent, daemon=True, name="parent-watch").start()
    try:
        _report(reports, {"stage": "loading libraries", "fraction": 0.0})
        gc.disable()  # importing makes a million objects that stay; looking through them again and again takes seconds
        from tokenwire.engine.local.build import build_core  # imports torch, which takes seconds

        gc.freeze()
        gc.enable()

        core = build_core(
            Path(job.folder),
            job.options,
            CoreLink(job.address),
            lambda stage, fraction: _report(reports, {"stage": stage, "fraction": fraction}),
        )
    except TokenwireError as exc:
        _report(reports, {"failed": exc.message})
        return 1
    except Exception as exc:
        logging.getLogger(__name__).exception("the core could not start")
        _report(reports, {"failed": f"{type(exc).__name__}: {exc}"})
        return 1
    _report(reports, {"ready": round(time.monotonic() - started, 3)})
    core.run()


def _claim_stdout() -> IO[str]:
    """Keep standard output for reports; what libraries print goes to standard error."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", buffering=1)


def _report(reports: IO[str], content: dict[str, object]) -> None:
    reports.write(json.dumps(content) + "\n")
    reports.flush()


def _end_with_parent() -> None:
    """Standard input stays silent while the starter lives."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(2)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no interpreter shutdown: the watcher thread sits in a read
