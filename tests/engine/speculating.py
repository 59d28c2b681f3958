"""Two cores over one tiny model with a byte tokenizer: one that guesses, and one that does not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from tests.engine.harness import Harness
from tokenwire.engine.base import EngineOutput, Logprobs
from tokenwire.engine.local.options import NgramOptions

THINK, END_THINK = 1, 2
FIRST_CHARACTER = 4
"""The id of "!", which is byte 33; the others follow."""


def ids_of(text: str) -> list[int]:
    return [FIRST_CHARACTER + ord(character) - 33 for character in text]


def with_tokenizer(model: Path, target: Path) -> Path:
    """A copy of the model with one token a printable character, and two for reasoning."""
    shutil.copytree(model, target)
    vocab = {"<pad>": 0, "<think>": THINK, "</think>": END_THINK, "<eos>": 3}
    vocab |= {chr(33 + i): FIRST_CHARACTER + i for i in range(93)}
    tokenizer = Tokenizer(BPE(vocab, []))
    tokenizer.add_special_tokens([AddedToken(name) for name in ("<pad>", "<think>", "</think>", "<eos>")])
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.save(str(target / "tokenizer.json"))
    return target


@dataclass
class Ask:
    prompt: list[int]
    params: dict[str, Any] = field(default_factory=dict)


class Pair:
    """The same requests for both cores."""

    def __init__(self, folder: Path, lookup: NgramOptions, **options: Any) -> None:
        shared = {"return_sampling_mask": True, "reasoning_start": "<think>", "reasoning_end": "</think>"} | options
        self.plain = Harness(folder, **shared)
        self.guessing = Harness(folder, speculative=lookup, **shared)

    def run(self, asks: Sequence[Ask]) -> list[list[EngineOutput]]:
        """All at the same time; asserts that both cores say the same, and returns what the guessing one said."""
        told = []
        for harness in (self.plain, self.guessing):
            harness.core.runner.attention.register()  # the name is one for all cores of a process
            runs = [(harness.add(ask.prompt, **ask.params), ask) for ask in asks]
            harness.run()
            told.append([[harness.output(h, i) for i in range(a.params.get("n", 1))] for h, a in runs])
        for ask, expected, found in zip(asks, *told, strict=True):
            for a, b in zip(expected, found, strict=True):
                assert_same(a, b, ask)
        return told[1]


def assert_same(plain: EngineOutput, guessed: EngineOutput, what: object) -> None:
    """Everything but what speculation tells of itself."""
    assert guessed.token_ids == plain.token_ids, what
    assert (guessed.finish_reason, guessed.stop_reason, guessed.error) == (
        plain.finish_reason,
        plain.stop_reason,
        plain.error,
    ), what
    assert guessed.weight_versions == plain.weight_versions
    _assert_scores(plain.logprobs, guessed.logprobs)
    if plain.prompt is not None and guessed.prompt is not None:
        _assert_scores(plain.prompt.logprobs, guessed.prompt.logprobs)
    assert (plain.sampling_mask is None) == (guessed.sampling_mask is None)
    for a, b in zip(plain.sampling_mask or (), guessed.sampling_mask or (), strict=True):
        np.testing.assert_array_equal(a, b)


def _assert_scores(plain: Logprobs | None, guessed: Logprobs | None) -> None:
    assert (plain is None) == (guessed is None)
    if plain is None or guessed is None:
        return
    np.testing.assert_array_equal(guessed.ranks, plain.ranks)
    np.testing.assert_array_equal(guessed.token_ids, plain.token_ids)
    np.testing.assert_allclose(guessed.logprobs, plain.logprobs, atol=1e-4)
