"""Requests, aborts, stops, pauses, resets and new weight labels in any order, on a crowded core that may speculate.

1. A sequence that ends by itself has the ids and scores that it has alone; one that was ended early has a beginning
   of them.
2. Prompt facts come once a request, with the scores that it has alone.
3. Weight versions are contiguous spans over what came.
4. Nothing is left at the end: no request, no block, no row.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import Harness
from tokenwire.engine.base import EngineOutput
from tokenwire.engine.control import Pause, ResetPrefixCache, Resume
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local.options import NgramOptions

BASE = [11, 22, 33, 44, 55, 66, 77, 88, 9, 10, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25]
CROWDED: tuple[dict[str, Any], ...] = (
    {"num_kv_blocks": 34, "max_num_seqs": 4, "max_num_batched_tokens": 7},
    {"num_kv_blocks": 34, "max_num_seqs": 6, "max_num_batched_tokens": 64, "scheduling_policy": "fcfs"},
    {"num_kv_blocks": 40, "max_num_seqs": 3, "max_num_batched_tokens": 16, "enable_prefix_caching": False},
    {"num_kv_blocks": 34, "max_num_seqs": 4, "max_num_batched_tokens": 7, "speculative": NgramOptions()},
    {
        "num_kv_blocks": 40,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 64,
        "speculative": NgramOptions(num_speculative_tokens=7, lookup_min=1, lookup_max=3),
    },
)

Ask = tuple[tuple[int, ...], tuple[tuple[str, Any], ...]]


def random_ask(rnd: random.Random) -> Ask:
    """A prompt, which often begins like others, and seeded parameters."""
    prompt = BASE[: rnd.randint(1, len(BASE))] + [rnd.choice([30, 31]) for _ in range(rnd.randint(0, 2))]
    params: dict[str, Any] = {"max_tokens": rnd.choice([1, 3, 12, 30]), "ignore_eos": rnd.random() < 0.5}
    if rnd.random() < 0.6:
        params |= {"temperature": 1.0, "seed": rnd.randint(0, 3), "n": rnd.choice([1, 2, 3])}
    if rnd.random() < 0.3:
        params["logprobs"] = rnd.choice([0, 2])
    if rnd.random() < 0.25:
        params["prompt_logprobs"] = 1
    elif rnd.random() < 0.2:
        start = rnd.randint(0, len(prompt))
        params |= {
            "prompt_logprob_token_ids": [[1, 2], [-1, 5], [7, -1]],
            "prompt_logprob_start": start,
            "skip_reading_prefix_cache": False,
        }
    if rnd.random() < 0.2:
        params |= {"min_tokens": 1, "repetition_penalty": 1.3, "presence_penalty": 0.5}
    return tuple(prompt), tuple((k, v) for k, v in params.items())


class Alone:
    """What a request gives on a core of its own, without a prefix cache."""

    def __init__(self, folder: Path) -> None:
        self._harness = Harness(folder, enable_prefix_caching=False, max_num_batched_tokens=128)
        self._known: dict[str, list[EngineOutput]] = {}

    def outputs(self, ask: Ask) -> list[EngineOutput]:
        key = repr(ask)
        if key not in self._known:
            params = dict(ask[1])
            handle = self._harness.add(list(ask[0]), **params)
            self._harness.run()
            self._known[key] = [self._harness.output(handle, i) for i in range(params.get("n", 1))]
        return self._known[key]


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path]) -> Alone:
    return Alone(folders["llama"])


class Trouble:
    """Sends a core whatever comes to mind."""

    def __init__(self, harness: Harness, rnd: random.Random) -> None:
        self.harness = harness
        self.rnd = rnd
        self.asks: dict[int, Ask] = {}
        self.left: set[int] = set()
        self.stopped: set[tuple[int, int]] = set()
        self._labels = 0

    def something(self) -> None:
        rnd, harness = self.rnd, self.harness
        kind = rnd.random()
        if kind < 0.5 and len(self.asks) < 25:
            ask = random_ask(rnd)
            handle = harness.add(
                list(ask[0]),
                stream=rnd.random() < 0.6,
                priority=rnd.choice([0, 0, 0, 1, -1]),
                salt=rnd.choice([None, None, "a"]),
                stream_interval=rnd.choice([1, 1, 4]),
                **dict(ask[1]),
            )
            self.asks[handle] = ask
        elif kind < 0.6 and self.asks:
            harness.link.inbox.append(wire.Abort([rnd.choice(list(self.asks)), 999], rnd.choice([1, 2])))
        elif kind < 0.66 and self.asks:
            handle = rnd.choice(list(self.asks))
            harness.queues[handle]._open.clear()
            self.left.add(handle)
            harness.streams._left(handle)
        elif kind < 0.72 and self.asks:
            handle = rnd.choice(list(self.asks))
            index = rnd.randrange(dict(self.asks[handle][1]).get("n", 1))
            if (handle, index) in harness.results and harness.output(handle, index).finish_reason is None:
                self.stopped.add((handle, index))
                harness.queues[handle].stop(index)
        elif kind < 0.76:
            harness.link.inbox.append(wire.ControlCall(3, ResetPrefixCache(reset_running_requests=rnd.random() < 0.5)))
        elif kind < 0.8:
            harness.link.inbox.append(wire.ControlCall(4, Pause(mode="keep", clear_cache=rnd.random() < 0.5)))
            harness.tick()
            harness.link.inbox.append(wire.ControlCall(5, Resume()))
        elif kind < 0.84:
            self._labels += 1
            harness.core.set_weight_version(f"v{self._labels}")


@pytest.mark.parametrize("options", CROWDED)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_around_it_a_request_gives_what_it_gives_alone(
    seed: int, options: dict[str, Any], folders: dict[str, Path], alone: Alone
) -> None:
    rnd = random.Random(seed)
    trouble = Trouble(Harness(folders["llama"], **options), rnd)
    harness = trouble.harness
    for _ in range(80):
        trouble.something()
        if rnd.random() < 0.7:
            harness.tick()
    harness.run()
    for handle, ask in trouble.asks.items():
        if handle not in trouble.left:
            check(trouble, handle, alone.outputs(ask))
    core = harness.core
    assert core.idle
    assert (len(core.scheduler.running), len(core.scheduler.waiting), core.scheduler.pool.usage) == (0, 0, 0)
    assert sorted(core.scheduler._free_rows) == list(range(options["max_num_seqs"]))
    assert not core._samplers


def check(trouble: Trouble, handle: int, expected: list[EngineOutput]) -> None:
    prompts = []
    for index, whole in enumerate(expected):
        result = trouble.harness.results.get((handle, index))
        if result is None:
            assert (handle, index) in trouble.stopped
            continue
        output = result.output
        count = len(output.token_ids)
        assert output.token_ids == whole.token_ids[:count]
        if (handle, index) in trouble.stopped:
            assert output.finish_reason is None
        elif output.finish_reason != "abort":
            assert (output.finish_reason, output.token_ids) == (whole.finish_reason, whole.token_ids)
        if output.finish_reason is not None:
            spans = output.weight_versions
            assert spans is not None
            assert [s.start for s in spans] == [0, *(s.end for s in spans)][: len(spans)]
            assert (spans[-1].end if spans else 0) == count
        if whole.logprobs is not None and count:
            assert output.logprobs is not None
            assert len(output.logprobs) == count
            np.testing.assert_allclose(output.logprobs.logprobs, whole.logprobs.logprobs[:count], atol=1e-4)
        if output.prompt is not None:
            prompts.append(output.prompt)
    first = expected[0].prompt
    assert first is not None
    assert len(prompts) <= 1
    if prompts and first.logprobs is not None:
        np.testing.assert_allclose(prompts[0].logprobs.logprobs, first.logprobs.logprobs, atol=1e-4)
    if prompts and first.token_id_logprobs is not None:
        np.testing.assert_allclose(prompts[0].token_id_logprobs, first.token_id_logprobs, atol=1e-4)
