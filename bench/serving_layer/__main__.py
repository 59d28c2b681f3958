"""What the serving layer costs without a model, beside vLLM's own.

    python bench/serving_layer [--vllm-python PATH] [--rounds 5] [--only TEXT] [--tokenizer FOLDER]

Both servers stand over engines that make tokens for nothing, in processes of their own, and answer the same requests
in turn; what is counted is the CPU time of the server process. A row is the median of the rounds. Without
`--vllm-python` only ours is measured; without `--tokenizer` the levels that make text are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from cases import OWN_CASES, SHARED_CASES, STEP_MS, Case
from drive import HOST, Figures, run

READY_S = 180.0
Address = tuple[int, int]
"""Port and process id."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(command: list[str], port: int) -> Iterator[Address]:
    """The server's address once it takes connections. Raises `RuntimeError` if it ends or takes too long."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                break
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"not serving: {' '.join(command)}")
            time.sleep(0.2)
        time.sleep(1.0)
        yield port, server.pid
    finally:
        server.terminate()
        server.wait()


def own_server(port: int, step_ms: int, tokenizer: str | None) -> list[str]:
    command = [sys.executable, "-m", "tokenwire", "serve", "--engine", "null", "--port", str(port)]
    command += ["--null-step-ms", str(step_ms), "--disable-uvicorn-access-log", "--max-num-seqs", "256"]
    return command + ([] if tokenizer is None else ["--tokenizer", tokenizer, "--null-vocab-size", "41000"])


def vllm_server(python: str, port: int, step_ms: int) -> list[str]:
    return [python, str(Path(__file__).with_name("vllm_stub.py")), str(port), str(step_ms)]


def measure(cases: list[Case], stepped: bool, rounds: int, args: argparse.Namespace) -> list[dict[str, object]]:
    """Rows for the cases of one kind of engine, both servers up at once and asked in turn."""
    wanted = [case for case in cases if case.stepped == stepped]
    if not wanted:
        return []
    step_ms = STEP_MS if stepped else 0
    with contextlib.ExitStack() as stack:
        port = free_port()
        ours = stack.enter_context(serving(own_server(port, step_ms, args.tokenizer), port))
        peer = None
        if args.vllm_python and any(case in SHARED_CASES for case in wanted):
            port = free_port()
            peer = stack.enter_context(serving(vllm_server(args.vllm_python, port, step_ms), port))
        return [row(case, ours, peer if case in SHARED_CASES else None, rounds) for case in wanted]


def row(case: Case, ours: Address, peer: Address | None, rounds: int) -> dict[str, object]:
    own: list[Figures] = []
    other: list[Figures] = []
    for _ in range(rounds):
        if peer is not None:
            other.append(run(case, *peer))
        own.append(run(case, *ours))
    found: dict[str, object] = {"case": case.name, **_median(own)}
    if other:
        found["vllm"] = _median(other)
        ratios = [a.cpu_us_per_token / b.cpu_us_per_token for a, b in zip(own, other, strict=True)]
        found["cpu_ratio"] = round(statistics.median(ratios), 3)
    print(json.dumps(found), flush=True)
    return found


def _median(figures: list[Figures]) -> dict[str, float]:
    rows = [asdict(figure) for figure in figures]
    return {name: float(f"{statistics.median(r[name] for r in rows):.4g}") for name in rows[0]}


def table(rows: list[dict[str, object]]) -> str:
    """Markdown: CPU microseconds per token, ours and the peer's."""
    lines = ["| case | tokenwire µs/token | vLLM µs/token | ratio |", "|---|---|---|---|"]
    for found in rows:
        peer = found.get("vllm")
        other = f"{peer['cpu_us_per_token']:g}" if isinstance(peer, dict) else ""
        lines.append(f"| {found['case']} | {found['cpu_us_per_token']:g} | {other} | {found.get('cpu_ratio', '')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment with vLLM")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="adds the levels that make text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    args = parser.parse_args()
    cases = [*SHARED_CASES, *OWN_CASES]
    if args.tokenizer is None:
        cases = [case for case in cases if case.level == "tokens"]
    cases = [case for case in cases if args.only in case.name]
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    print(json.dumps(machine), flush=True)
    rows = measure(cases, False, args.rounds, args) + measure(cases, True, args.rounds, args)
    print(table(rows))


if __name__ == "__main__":
    main()
