"""How long a start takes and what a process weighs: imports, ready, first token, memory of every process.

    python bench/startup.py [--repeats 5] [--tokenizer NAME=FOLDER ...] [--vllm-python PATH] [--json FILE] [--page]

Each start is repeated, all kinds in turn, and the fastest counts: a busy machine only ever makes a start slower. The
processor time beside it hardly depends on that. The model is cached and the files are in the page cache, as for every
start but the first. Targets: a front end alone ready within 1.5 s and under 150 MB, an engine's first token within 6 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import load, machine, pages
from common.servers import DidNotStart, Server, command_of, environment, free_port, memory, tokenwire

PACKAGES = ("tokenwire", "torch", "transformers", "tokenizers")
FRONT_END, CORE = "tokenwire.commands.runtime,tokenwire.render.json_tokenizer", "tokenwire.engine.local.build"
_LISTED = 6


@dataclass(slots=True)
class Start:
    """Starts of one kind. Sizes in MB of the last start."""

    name: str
    make: Callable[[], Server]
    has_engine: bool
    ready_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)

    def measure(self) -> None:
        server = self.make()
        try:
            self.ready_s.append(server.wait_until_ready())
            self.cpu_s.append(server.cpu_s())
            if self.has_engine:
                load.generate(server.port, [1, 2, 3], 1)
                # Ready and first token are from the same start, so their difference is the first request's.
                self.first_token_s.append(time.perf_counter() - server.started)
            self.processes = [_weigh(pid) for pid in server.processes()]
        finally:
            server.stop()

    def result(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("make", "has_engine")}


def _weigh(pid: int) -> dict[str, Any]:
    sizes = {name: round(size / 1e6, 1) for name, size in asdict(memory(pid)).items()}
    return {"command": _short(command_of(pid)), **sizes}


def _short(command: str) -> str:
    if "core_main" in command:
        return "engine core"
    return " ".join(part.rsplit("/", 1)[-1] for part in command.split()[:5])


def kinds(args: argparse.Namespace) -> list[Start]:
    starts = [
        Start("`serve --engine null`", lambda: tokenwire("serve", "--engine", "null"), True),
        Start("`serve` (SmolLM2-135M)", lambda: tokenwire("serve", *_model(args)), True),
    ]
    if args.quick:
        starts.pop()
    for text in args.tokenizer:
        name, _, folder = text.rpartition("=")
        label = f"`render`, tokenizer of {name or Path(folder).name}"
        starts.append(Start(label, lambda folder=folder: tokenwire("render", folder), False))
    if args.vllm_python is not None:
        starts.append(Start("`vllm serve` (SmolLM2-135M)", lambda: _vllm(args.vllm_python, args), True))
    return starts


def _model(args: argparse.Namespace) -> list[str]:
    return [] if args.model is None else [args.model]


def _vllm(python: Path, args: argparse.Namespace) -> Server:
    from tokenwire.engine.local.models import prepare_model

    port = free_port()
    command = [str(python.parent / "vllm"), "serve", str(args.model or prepare_model(None))]
    flags = ["--port", str(port), "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "8192"]
    return Server([*command, *flags, "--enable-scale-out"], port, {"VLLM_CPU_KVCACHE_SPACE": "2"})


def imports(modules: str) -> dict[str, Any]:
    """Seconds of processor time to import `modules` in a new process, and which packages took most of it."""
    code = f"import gc, time; gc.disable(); t = time.process_time(); import {modules}; print(time.process_time() - t)"
    env = environment({"PYTHONPATH": str(pages.ROOT / "src")})
    plain = [float(_python("-c", code, env=env).stdout) for _ in range(3)]
    own_us: dict[str, int] = {}
    for _ in range(3):
        for line in _python("-X", "importtime", "-c", code, env=env).stderr.splitlines():
            parts = [part.strip() for part in line.removeprefix("import time:").split("|")]
            if len(parts) == 3 and parts[0].isdigit():
                own_us[parts[2]] = min(own_us.get(parts[2], sys.maxsize), int(parts[0]))
    by_package: dict[str, int] = {}
    for module, us in own_us.items():
        package = module.partition(".")[0]
        by_package[package] = by_package.get(package, 0) + us
    largest = sorted(by_package.items(), key=lambda item: -item[1])[:_LISTED]
    return {"modules": modules, "cpu_s": round(min(plain), 3), "own_ms": {k: round(v / 1e3) for k, v in largest}}


def _python(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, check=True)


def section(result: dict[str, Any], command: str) -> str:
    rows = [
        [
            start["name"],
            min(start["ready_s"]),
            min(start["cpu_s"]),
            min(start["first_token_s"]) if start["first_token_s"] else None,
            round(start["processes"][0]["rss"]),
            round(sum(process["pss"] for process in start["processes"])),
        ]
        for start in result["starts"]
    ]
    head = ["start", "ready, s", "CPU until then, s", "first token, s", "front end, MB", "all processes, MB"]
    listed = "\n".join(
        f"- {what}: {part['cpu_s']:.2f} s of CPU; "
        + ", ".join(f"{package} {ms} ms" for package, ms in part["own_ms"].items())
        for what, part in result["imports"].items()
    )
    return (
        f"`{command}`: fastest of {result['repeats']} starts, model cached. {machine.sentence(result['machine'])}\n"
        f"The front end's memory is its resident set; over all processes, shared pages are counted once.\n\n"
        f"{pages.table(head, rows)}\n\nImporting, with the packages that take most of it:\n\n{listed}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="starts of each kind (default: 5)")
    parser.add_argument("--model", help="weights to serve (default: SmolLM2-135M-Instruct)")
    parser.add_argument(
        "--tokenizer", action="append", default=[], metavar="NAME=FOLDER", help="also start `render` on it; repeatable"
    )
    parser.add_argument(
        "--vllm-python", type=Path, metavar="PATH", help="a Python with vLLM, to start `vllm serve` too"
    )
    parser.add_argument("--quick", action="store_true", help="one start of each kind, none with a model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    parser.add_argument("--page", action="store_true", help="write the table into docs/performance.md")
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(*PACKAGES), "repeats": 1 if args.quick else args.repeats}
    result["imports"] = {"front end": imports(FRONT_END)} | ({} if args.quick else {"engine core": imports(CORE)})
    starts = kinds(args)
    for _ in range(result["repeats"]):
        for start in list(starts):
            try:
                start.measure()
            except (DidNotStart, RuntimeError, OSError) as exc:
                print(f"left out: {start.name}: {exc}", file=sys.stderr)
                starts.remove(start)
                continue
            print(json.dumps({"start": start.name, "ready_s": round(start.ready_s[-1], 2)}), flush=True)
    result["starts"] = [start.result() for start in starts]
    result["median_ready_s"] = {start.name: round(statistics.median(start.ready_s), 2) for start in starts}
    command = pages.command("startup.py", sys.argv[1:])
    text = section(result, command)
    print(text)
    if args.json is not None:
        pages.write_json(args.json, result)
    if args.page:
        pages.write_section("startup", text)


if __name__ == "__main__":
    main()
