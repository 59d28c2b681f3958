"""The gate, the canonical form and the light check, without a vocabulary.

1. The constraint begins right after the reasoning's end marker; before it everything is allowed.
2. Accepting and rolling back any number of tokens gives the state of the shorter sequence, over the gate too.
3. A front end refuses what is surely wrong and imports neither torch nor xgrammar for it.
4. Schemas go to the library that enforces them.
5. Masks reach the right rows of the logits, and ids past a mask's end are forbidden.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tokenwire.engine.local.grammar import check_structured_outputs
from tokenwire.engine.local.grammar.features import needs_llguidance
from tokenwire.engine.local.grammar.matcher import GrammarMatcher, set_bits
from tokenwire.engine.local.grammar.source import close_objects
from tokenwire.engine.local.sampling import SequenceSampler, sample
from tokenwire.errors import InvalidRequestError
from tokenwire.wire.sampling import SamplingParams, StructuredOutputs

STOP = 9


class Cycle:
    """Allows 0, 1, 2, 0, 1, 2 ... and STOP after every 2."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def _next(self) -> set[int]:
        at_end = bool(self.taken) and len(self.taken) % 3 == 0
        return {len(self.taken) % 3} | ({STOP} if at_end else set())

    def fill(self, words: NDArray[np.int32]) -> bool:
        words[:] = 0
        set_bits(words, frozenset(self._next()))
        return True

    def accept(self, token_id: int) -> bool:
        if token_id not in self._next():
            return False
        self.taken.append(token_id)
        return True

    def rollback(self, count: int) -> None:
        assert count <= len(self.taken)
        del self.taken[len(self.taken) - count :]


def allowed(matcher: GrammarMatcher) -> set[int]:
    words = np.full(1, -1, dtype=np.int32)
    if not matcher.fill(words):
        return set(range(32))
    return {i for i in range(32) if int(words.view(np.uint32)[0]) >> i & 1}


def gated() -> GrammarMatcher:
    return GrammarMatcher(Cycle(), stop_ids=[STOP], reasoning_end_token_ids=[5, 6])


def test_the_constraint_begins_after_the_end_of_reasoning() -> None:
    matcher = gated()
    for token in (7, 5, 5, 6):
        assert not matcher.is_open
        assert allowed(matcher) == set(range(32))
        assert matcher.accept(token)
    assert matcher.is_open
    assert allowed(matcher) == {0}
    assert not matcher.accept(1)


@given(st.lists(st.sampled_from([0, 1, 2, 5, 6, STOP]), max_size=14), st.integers(0, 14), st.booleans())
def test_rolling_back_gives_the_state_of_the_shorter_sequence(tokens: list[int], count: int, reasons: bool) -> None:
    def fresh() -> GrammarMatcher:
        return gated() if reasons else GrammarMatcher(Cycle(), stop_ids=[STOP])

    matcher = fresh()
    taken = [token for token in tokens if matcher.accept(token)]
    count = min(count, len(taken))
    matcher.rollback(count)
    shorter = fresh()
    for token in taken[: len(taken) - count]:
        assert shorter.accept(token)
    assert (matcher.is_open, matcher.is_terminated, allowed(matcher)) == (
        shorter.is_open,
        shorter.is_terminated,
        allowed(shorter),
    )
    assert matcher.validate(taken[len(taken) - count :]) == count
    assert allowed(matcher) == allowed(shorter)


def test_masks_reach_their_rows_and_forbid_ids_past_their_end() -> None:
    logits = torch.zeros(3, 40)
    logits[:, 39] = 5.0
    free = SequenceSampler(SamplingParams(temperature=0), [], vocab_size=40)
    bound = SequenceSampler(
        SamplingParams(temperature=0), [], vocab_size=40, grammar=GrammarMatcher(Cycle(), stop_ids=[STOP])
    )
    tokens = []
    for _ in range(4):
        output = sample(logits.clone(), [free, bound, free]).token_ids.tolist()
        assert output[0] == output[2] == 39
        tokens.append(output[1])
        assert bound.append(output[1])
    assert tokens == [0, 1, 2, 0]


@pytest.mark.parametrize(
    "spec", [{"regex": "([a-z"}, {"json": "{"}, {"structural_tag": "["}, {"json": "3"}, {"regex": "a{2,1}"}]
)
def test_a_front_end_refuses_what_is_surely_wrong(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        check_structured_outputs(StructuredOutputs(**spec))


@pytest.mark.parametrize(
    "spec",
    [
        {"regex": r"\p{L}+"},
        {"regex": ""},
        {"json": {"type": "foo"}},
        {"choice": ["a"]},
        {"grammar": "?"},
        {"json": "true"},
    ],
)
def test_a_front_end_leaves_the_rest_to_the_engine(spec: dict[str, Any]) -> None:
    assert check_structured_outputs(StructuredOutputs(**spec)).kind == next(iter(spec))


def test_the_front_end_check_is_light() -> None:
    code = (
        "import sys; from tokenwire.engine.local.grammar import check_structured_outputs as check;"
        "from tokenwire.wire.sampling import StructuredOutputs as S; check(S(regex='a+')); check(S(json_object=True));"
        "print([m for m in ('torch', 'transformers', 'xgrammar') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("schema", "beyond_xgrammar"),
    [
        ({"type": "object", "properties": {"multipleOf": {"type": "integer"}}}, False),
        ({"type": ["integer", "null"], "multipleOf": 2}, True),
        ({"anyOf": [{"type": "array", "contains": {}}]}, True),
        ({"type": "string", "format": "email"}, False),
        ({"type": "string", "format": "regex"}, True),
        ({"type": "string", "pattern": "a", "maxLength": 3}, True),
        ({"enum": [{"type": "integer", "multipleOf": 2}]}, False),
        ({"type": "object", "propertyNames": {"pattern": "a"}}, False),
        ({"type": "object", "propertyNames": {"maxLength": 2, "pattern": "a"}}, True),
        ({"$defs": {"x": {"allOf": [{}, {}]}}}, True),
        ({"allOf": [{"type": "string"}]}, False),
        (True, False),
    ],
    ids=str,
)
def test_schemas_go_to_the_library_that_enforces_them(schema: Any, beyond_xgrammar: bool) -> None:
    assert needs_llguidance(schema) == beyond_xgrammar


def test_closing_objects_touches_schemas_only_and_copies() -> None:
    schema = {
        "properties": {"properties": {"type": "string"}, "o": {"properties": {}, "additionalProperties": {}}},
        "enum": [{"properties": {}}],
        "items": [{"patternProperties": {"a": {}}}],
    }
    assert close_objects(schema) == {
        "properties": {"properties": {"type": "string"}, "o": {"properties": {}, "additionalProperties": {}}},
        "additionalProperties": False,
        "enum": [{"properties": {}}],
        "items": [{"patternProperties": {"a": {}}, "additionalProperties": False}],
    }
    assert "additionalProperties" not in schema
