"""What guessing brings: tokens per second of the local engine's core with and without prompt lookup.

    python bench/speculative.py                                # the default model; about five minutes
    python bench/speculative.py --num-speculative-tokens 7 --rounds 9 --concurrency 1 8 16 --threads 1

Texts that repeat something and texts that do not, at several concurrencies, in one process with one model: every case
runs in turns with and without, `--rounds` times, and the best time of each counts, since other work on the machine only
ever makes it slower. CPU time suffers less from that; with more than one thread it counts waiting, too. Where ids
differ, the number of rows of a matrix product has changed the last bits of two nearly equal logits.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from tokenwire.engine.base import SpecDecodeStats
from tokenwire.engine.local import LocalEngineOptions, messages
from tokenwire.engine.local.build import build_core
from tokenwire.engine.local.models import prepare_model
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
class Said:
    """One sequence's output."""

    token_ids: list[int] = field(default_factory=list)
    speculation: SpecDecodeStats | None = None
    ended: bool = False


class Driver:
    """Both ends of a core's link, in this process."""

    def __init__(self, model: str | None, lookup: NgramOptions, threads: int | None) -> None:
        folder = prepare_model(model)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._inbox: list[messages.ToCore] = [messages.Attach()]
        options = LocalEngineOptions(num_kv_blocks=2000, speculative=lookup, num_threads=threads)
        self._core = build_core(folder, options, self)
        self._drafter = self._core.scheduler.drafter
        self._said: dict[int, Said] = {}

    @property
    def costs(self) -> str:
        """As the core has measured them."""
        assert self._drafter is not None
        costs = self._drafter.costs
        return ", ".join(f"{rows}: {1000 * s:.1f}" for rows, s in zip(costs.rows, costs.times, strict=True))

    def receive(self, timeout_ms: int | None) -> list[tuple[bytes, messages.ToCore]]:
        taken, self._inbox = self._inbox, []
        return [(b"bench", message) for message in taken]

    def send(self, client: bytes, message: messages.FromCore) -> None:
        if not isinstance(message, messages.Step):
            return
        handles, ids = messages.unpack_ids(message.handles), messages.unpack_ids(message.token_ids)
        at = 0
        for handle, count in zip(handles, messages.unpack_ids(message.counts), strict=True):
            self._said[handle].token_ids += ids[at : at + count]
            at += count
        for detail in message.details:
            said = self._said[handles[detail.row]]
            said.ended = said.ended or detail.finish_reason is not None
            if detail.speculation is not None:
                told = detail.speculation
                said.speculation = SpecDecodeStats(told.num_spec_tokens, list(told.drafted), list(told.accepted))

    def run(self, case: Case, numbers: Sequence[int], *, guessing: bool, max_tokens: int | None = None) -> list[Said]:
        """All prompts at once, until every answer has ended."""
        self._core.scheduler.drafter = self._drafter if guessing else None
        first = len(self._said)
        for handle, number in enumerate(numbers, start=first):
            text = f"<|im_start|>user\n{case.prompts[number]}<|im_end|>\n<|im_start|>assistant\n"
            prompt = messages.pack_ids(self._tokenizer.encode(text, add_special_tokens=False).ids)
            sampling = SamplingParams(
                temperature=case.temperature, seed=number, max_tokens=max_tokens or case.max_tokens
            )
            self._said[handle] = Said()
            self._inbox.append(messages.Add(handle=handle, prompt=prompt, sampling=sampling, stream=True))
        said = [self._said[handle] for handle in range(first, first + len(numbers))]
        while not all(one.ended for one in said):
            self._core.turn()
        return said


@dataclass
class Best:
    """Of one case at one concurrency, without and with guesses."""

    wall_s: list[float] = field(default_factory=lambda: [float("inf")] * 2)
    cpu_s: list[float] = field(default_factory=lambda: [float("inf")] * 2)
    said: list[list[Said]] = field(default_factory=lambda: [[], []])

    def measure(self, driver: Driver, case: Case, numbers: Sequence[int]) -> None:
        for side in (0, 1):
            wall, cpu = time.perf_counter(), time.process_time()
            self.said[side] = driver.run(case, numbers, guessing=side == 1)
            self.wall_s[side] = min(self.wall_s[side], time.perf_counter() - wall)
            self.cpu_s[side] = min(self.cpu_s[side], time.process_time() - cpu)

    def line(self) -> str:
        tokens = [sum(len(one.token_ids) for one in side) for side in self.said]
        plain, guessing = (count / seconds for count, seconds in zip(tokens, self.wall_s, strict=True))
        by_cpu = tokens[1] / self.cpu_s[1] / (tokens[0] / self.cpu_s[0])
        stats = [one.speculation for one in self.said[1] if one.speculation is not None]
        drafted, accepted = sum(sum(s.drafted) for s in stats), sum(sum(s.accepted) for s in stats)
        same = sum(a.token_ids == b.token_ids for a, b in zip(*self.said, strict=True))
        return (
            f"{plain:>12.1f} {guessing:>9.1f} {guessing / plain:>6.2f} {by_cpu:>7.2f} "
            f"{accepted / drafted if drafted else 0:>9.2f} {tokens[1] / (tokens[1] - accepted):>9.2f} "
            f"{same:>6}/{len(self.said[1])}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=5)
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
    driver = Driver(arguments.model, lookup, arguments.threads)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {arguments.threads or 'all'} threads, {lookup}")
    print("rows and milliseconds of a step:", driver.costs)
    print("case            streams  tok/s plain  guessing  ratio  by CPU  accepted  per step  same ids")
    for case in CASES:
        for concurrency in arguments.concurrency:
            numbers = [i % len(case.prompts) for i in range(concurrency)]
            driver.run(case, numbers, guessing=True, max_tokens=1)  # prompts in the prefix cache, kernels compiled
            best = Best()
            for _ in range(arguments.rounds):
                best.measure(driver, case, numbers)
            print(f"{case.name:<15} {concurrency:>7} {best.line()}", flush=True)


if __name__ == "__main__":
    main()
