"""The fused path on several threads gives what it gives on one, bit for bit, for prompts and single tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.harness import Harness
from tests.engine.tiny_models import VOCAB
from tokenwire.engine.local import kernels


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    yield
    kernels.set_num_threads(1)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_the_number_of_threads_changes_no_score(quantization: str, folders: dict[str, Path]) -> None:
    rnd = random.Random(1)
    prompts = [[rnd.randrange(4, VOCAB) for _ in range(rnd.randint(1, 60))] for _ in range(6)]
    seen = []
    for threads in (1, 2, 3):
        harness = Harness(folders["llama"], quantization=quantization)
        kernels.set_num_threads(threads)
        handles = [harness.add(p, max_tokens=20, ignore_eos=True, logprobs=2) for p in prompts]
        harness.run()
        scores = []
        for handle in handles:
            logprobs = harness.output(handle).logprobs
            assert logprobs is not None
            scores.append((harness.ids(handle), logprobs.logprobs.tobytes()))
        seen.append(scores)
    assert seen[0] == seen[1] == seen[2]
