"""Grammars compiled by llguidance: for what xgrammar cannot express, and the one whose complaints callers see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.local.grammar.matcher import set_bits
from tokenwire.engine.local.grammar.source import GrammarSource, invalid
from tokenwire.engine.local.grammar.vocabulary import Vocabulary


@dataclass(slots=True, frozen=True)
class LlguidanceGrammar:
    """A pristine matcher; every sequence gets a copy."""

    pristine: llguidance.LLMatcher
    text_size: int

    @property
    def size_bytes(self) -> int:
        # llguidance does not tell; its lexer is built lazily and is some tens of times the grammar's text.
        return 64 * self.text_size

    def automaton(self, stop_ids: Sequence[int]) -> LlguidanceAutomaton:
        return LlguidanceAutomaton(self.pristine.deep_copy(), frozenset(stop_ids))


class LlguidanceAutomaton:
    """An llguidance matcher as an `Automaton`; stop ids are added here, since they differ by request."""

    __slots__ = ("_matcher", "_stop_ids", "_stopped")

    def __init__(self, matcher: llguidance.LLMatcher, stop_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._stop_ids = stop_ids
        self._stopped = False

    def fill(self, words: NDArray[np.int32]) -> bool:
        if self._matcher.is_stopped():
            words[:] = 0
        else:
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._may_stop():
            set_bits(words, self._stop_ids)
        return True

    def accept(self, token_id: int) -> bool:
        if token_id in self._stop_ids:
            self._stopped = self._may_stop()
            return self._stopped
        if self._matcher.is_stopped() or self._matcher.validate_tokens([token_id]) != 1:
            return False
        return bool(self._matcher.consume_token(token_id))

    def rollback(self, count: int) -> None:
        if count and self._stopped:  # the stop id never reached the library
            self._stopped = False
            count -= 1
        if count:
            self._matcher.rollback(count)

    def _may_stop(self) -> bool:
        return bool(self._matcher.is_accepting() or self._matcher.is_stopped())


class LlguidanceBackend:
    """Compiles with llguidance or raises `InvalidRequestError` with its complaint."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def compile(self, source: GrammarSource) -> LlguidanceGrammar:
        grammar = to_llguidance(source)
        matcher = llguidance.LLMatcher(self._vocabulary.llguidance, grammar, log_level=0)
        error = matcher.get_error()
        if error:
            raise invalid(f"Grammar error: {error.rstrip()}")
        return LlguidanceGrammar(matcher, len(grammar))


def to_llguidance(source: GrammarSource) -> str:
    """`source` as an llguidance grammar. Raises `InvalidRequestError`; validity itself is checked later."""
    try:
        if source.is_json:
            return str(llguidance.LLMatcher.grammar_from_json_schema(source.text, defaults=_json_options(source)))
        if source.kind == "structural_tag":
            return _tag(source)
        return str(llguidance.grammar_from(source.kind, source.text))
    except (ValueError, KeyError, TypeError) as exc:
        raise invalid(f"Invalid grammar specification: {exc}") from exc


def _json_options(source: GrammarSource) -> Any:
    options: dict[str, Any] = {"whitespace_flexible": not source.compact}
    if source.whitespace_pattern is not None and not source.compact:
        options["whitespace_pattern"] = source.whitespace_pattern
    return options


def _tag(source: GrammarSource) -> str:
    tag = json.loads(source.text)
    if "structures" not in tag or "triggers" not in tag:
        raise invalid("Invalid structural tag specification.")
    tags = [
        llguidance.StructTag(
            trigger=_trigger(s["begin"], tag["triggers"]),
            begin=s["begin"],
            grammar=llguidance.LLMatcher.grammar_from_json_schema(s["schema"], defaults=_json_options(source)),
            end=s["end"],
        )
        for s in tag["structures"]
    ]
    if not tags:
        raise invalid("structured_outputs.structural_tag has no structures.")
    return str(llguidance.StructTag.to_grammar(tags))


def _trigger(begin: str, triggers: Sequence[str]) -> str:
    found = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
    if found is None:
        raise invalid(f"structural_tag: {begin!r} begins with none of the triggers {list(triggers)}.")
    return found
