"""What guessing brings: tokens per second of the local engine with and without prompt lookup.

    python bench/speculative.py                                # the default model; about four minutes
    python bench/speculative.py --num-speculative-tokens 7 --rounds 5 --concurrency 1 8 16 --threads 1

Texts that repeat something and texts that do not, at several concurrencies. Engines with and without speculation are
started in turns, `--rounds` times each, and the best time of each case counts, since other work on the machine only
ever makes it slower; so does the best CPU time of the engine's process, which suffers less from it (with one thread:
threads that wait for each other count). Where ids differ, the number of rows of a matrix product has changed the last
bits of two nearly equal logits.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from tokenwire.engine.base import EngineOutput, EngineRequest
from tokenwire.engine.local import LocalEngine, LocalEngineOptions
from tokenwire.engine.local.options import NgramOptions
from tokenwire.wire.sampling import SamplingParams

TEXTS = (
    "The harbour was quiet at dawn. Seven fishing boats rocked gently against the wooden pier, and a grey cat watched "
    "the gulls from the roof of the net store. Nobody had slept well, and the keeper said that worse was to come.",
    "To make the dough, mix four cups of flour with two teaspoons of salt and a spoon of sugar. Add one cup of warm "
    "water and the yeast, knead for ten minutes, and let it rest under a cloth. Bake it at 220 degrees for an hour.",
    "Mary Somerville was born in Jedburgh in 1780 and taught herself mathematics at night, against the wish of her "
    "family. Her book on celestial mechanics was used in Cambridge for a century, and a college bears her name.",
    "Line 4 of the tram runs from the central station over the bridge to the botanical garden every twelve minutes. On "
    "Sundays it ends at the theatre. Tickets for one zone cost 2.40, for two zones 3.10, and children travel free.",
)
CODE = (
    "def total(items):\n    result = 0\n    for item in items:\n        if item.price > 0:\n"
    "            result = result + item.price\n        else:\n            result = result + item.default\n"
    "    return result\n",
    "def longest(words):\n    best = ''\n    for word in words:\n        if len(word) > len(best):\n"
    "            best = word\n        elif len(word) == len(best) and word < best:\n            best = word\n"
    "    return best\n",
)
TOPICS = (
    "a lighthouse",
    "a clockmaker",
    "winter on Mars",
    "a violin",
    "a fox",
    "the deep sea",
    "a letter",
    "a village",
)


@dataclass
class Case:
    name: str
    prompts: list[str]
    temperature: float = 0.0
    max_tokens: int = 96


CASES = (
    Case("repeat", [f"Repeat this text word for word, and write nothing else:\n\n{TEXTS[i % 4]}" for i in range(8)]),
    Case("edit", [f"Write this Python code again, with a comment above it:\n\n{CODE[i % 2]}" for i in range(8)]),
    Case("story", [f"Write a story about {topic}." for topic in TOPICS]),
    Case("story, sampled", [f"Write a story about {topic}." for topic in TOPICS], temperature=1.0),
)


@dataclass
class Figures:
    """Best seconds of every case and concurrency, and what was said."""

    wall_s: dict[tuple[str, int], float] = field(default_factory=dict)
    cpu_s: dict[tuple[str, int], float] = field(default_factory=dict)
    outputs: dict[tuple[str, int], list[EngineOutput]] = field(default_factory=dict)


def cpu_seconds(pid: int | None) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")


async def one(engine: LocalEngine, tokenizer: Tokenizer, case: Case, number: int, max_tokens: int) -> EngineOutput:
    text = f"<|im_start|>user\n{case.prompts[number]}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    sampling = SamplingParams(temperature=case.temperature, seed=number, max_tokens=max_tokens)
    merged: EngineOutput | None = None
    async for outputs in engine.generate(EngineRequest(f"{case.name}-{number}", ids, sampling, stream=True)):
        for output in outputs:
            if merged is None:
                merged = output
            else:
                merged.absorb(output)
    assert merged is not None
    return merged


async def measure(options: LocalEngineOptions, concurrencies: list[int], figures: Figures) -> None:
    """One life of an engine: every case at every concurrency, prompts in the prefix cache."""
    engine = LocalEngine(options)
    await engine.start()
    tokenizer = Tokenizer.from_file(f"{engine.info.extra['folder']}/tokenizer.json")
    try:
        for case in CASES:
            for number in range(len(case.prompts)):
                await one(engine, tokenizer, case, number, max_tokens=1)
            for concurrency in concurrencies:
                numbers = [i % len(case.prompts) for i in range(concurrency)]
                wall, cpu = time.perf_counter(), cpu_seconds(engine.pid)
                asks = (one(engine, tokenizer, case, number, case.max_tokens) for number in numbers)
                figures.outputs[case.name, concurrency] = await asyncio.gather(*asks)
                spent = time.perf_counter() - wall, cpu_seconds(engine.pid) - cpu
                for best, seconds in zip((figures.wall_s, figures.cpu_s), spent, strict=True):
                    best[case.name, concurrency] = min(best.get((case.name, concurrency), seconds), seconds)
    finally:
        await engine.close()


def report(plain: Figures, guessing: Figures) -> None:
    print("case            streams  tok/s plain  guessing  ratio  by CPU  accepted  per step  same ids")
    for key in plain.wall_s:
        sides = (plain.outputs[key], guessing.outputs[key])
        tokens = [sum(len(o.token_ids) for o in side) for side in sides]
        speeds = [count / f.wall_s[key] for count, f in zip(tokens, (plain, guessing), strict=True)]
        by_cpu = [count / f.cpu_s[key] for count, f in zip(tokens, (plain, guessing), strict=True)]
        stats = [o.spec_decode for o in sides[1] if o.spec_decode is not None]
        drafted, accepted = sum(sum(s.drafted) for s in stats), sum(sum(s.accepted) for s in stats)
        same = sum(a.token_ids == b.token_ids for a, b in zip(*sides, strict=True))
        print(
            f"{key[0]:<15} {key[1]:>7} {speeds[0]:>12.1f} {speeds[1]:>9.1f} {speeds[1] / speeds[0]:>6.2f} "
            f"{by_cpu[1] / by_cpu[0]:>7.2f} {accepted / drafted if drafted else 0:>9.2f} "
            f"{tokens[1] / (tokens[1] - accepted):>9.2f} {same:>6}/{len(sides[1])}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--num-speculative-tokens", type=int, default=NgramOptions().num_speculative_tokens)
    parser.add_argument("--ngram-min", type=int, default=NgramOptions().lookup_min)
    parser.add_argument("--ngram-max", type=int, default=NgramOptions().lookup_max)
    arguments = parser.parse_args()
    lookup = NgramOptions(
        num_speculative_tokens=arguments.num_speculative_tokens,
        lookup_min=arguments.ngram_min,
        lookup_max=arguments.ngram_max,
    )
    plain, guessing = Figures(), Figures()
    for _ in range(arguments.rounds):
        for speculative, figures in ((None, plain), (lookup, guessing)):
            options = LocalEngineOptions(
                model=arguments.model, num_threads=arguments.threads, num_kv_blocks=2000, speculative=speculative
            )
            asyncio.run(measure(options, arguments.concurrency, figures))
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {arguments.threads or 'all'} threads, {lookup}")
    report(plain, guessing)


if __name__ == "__main__":
    main()
