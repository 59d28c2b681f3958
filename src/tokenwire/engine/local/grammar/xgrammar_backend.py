"""Grammars compiled by xgrammar: the first choice for every kind of constraint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xgrammar
from numpy.typing import NDArray

from tokenwire.engine.local.grammar.features import needs_llguidance
from tokenwire.engine.local.grammar.source import GrammarSource
from tokenwire.engine.local.grammar.vocabulary import Vocabulary


@dataclass(slots=True, frozen=True)
class XgrammarGrammar:
    """A compiled grammar; every sequence gets an automaton of its own."""

    compiled: xgrammar.CompiledGrammar

    @property
    def size_bytes(self) -> int:
        return int(self.compiled.memory_size_bytes)

    def automaton(self, stop_ids: Sequence[int]) -> XgrammarAutomaton:
        return XgrammarAutomaton(xgrammar.GrammarMatcher(self.compiled, override_stop_tokens=list(stop_ids) or None))


class XgrammarAutomaton:
    """An xgrammar matcher as an `Automaton`."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    def fill(self, words: NDArray[np.int32]) -> bool:
        return bool(self._matcher.fill_next_token_bitmask(words[None], 0))

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)


class XgrammarBackend:
    """Compiles with xgrammar, or says why not; its compilers are made on first use."""

    def __init__(self, vocabulary: Vocabulary, *, threads: int) -> None:
        self._vocabulary = vocabulary
        self._threads = threads
        self._compilers: dict[bool, xgrammar.GrammarCompiler] = {}

    def compile(self, source: GrammarSource) -> XgrammarGrammar | None:
        """None if xgrammar cannot express `source` or refuses it."""
        if source.whitespace_pattern is not None or (source.is_json and needs_llguidance(source.schema)):
            return None
        try:
            return XgrammarGrammar(self._compile(source))
        except Exception:
            # xgrammar raises bare RuntimeErrors for whatever it does not like; the next library has the last word.
            return None

    def _compiler(self, *, with_special: bool) -> xgrammar.GrammarCompiler:
        if with_special not in self._compilers:
            info = self._vocabulary.xgrammar_special if with_special else self._vocabulary.xgrammar_plain
            self._compilers[with_special] = xgrammar.GrammarCompiler(
                info, max_threads=self._threads, cache_enabled=False
            )
        return self._compilers[with_special]

    def _compile(self, source: GrammarSource) -> xgrammar.CompiledGrammar:
        compiler = self._compiler(with_special=source.kind in ("grammar", "structural_tag"))
        match source.kind:
            case "json" | "json_object":
                separators = (",", ":") if source.compact else None
                return compiler.compile_json_schema(
                    source.text, any_whitespace=not source.compact, separators=separators
                )
            case "regex":
                return compiler.compile_regex(source.text)
            case "choice":
                return compiler.compile_grammar(choice_grammar(json.loads(source.text)))
            case "grammar":
                if source.is_lark:
                    return compiler.compile_lark(source.text)
                return compiler.compile_grammar(source.text)
            case _:
                return _compile_tag(compiler, json.loads(source.text))


def _compile_tag(compiler: xgrammar.GrammarCompiler, tag: dict[str, object]) -> xgrammar.CompiledGrammar:
    if "structures" not in tag:
        return compiler.compile_structural_tag(json.dumps(tag))
    # The old form, {"structures": [{begin, schema, end}], "triggers": [...]}, in the new one's words.
    structures = tag["structures"]
    assert isinstance(structures, list)
    tags = [
        {"begin": s["begin"], "content": {"type": "json_schema", "json_schema": s["schema"]}, "end": s["end"]}
        for s in structures
    ]
    content = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    return compiler.compile_structural_tag(json.dumps({"type": "structural_tag", "format": content}))


def choice_grammar(choices: Sequence[str]) -> str:
    """An EBNF grammar of literal alternatives."""
    return "root ::= " + " | ".join(f'"{"".join(map(_escape, choice))}"' for choice in choices)


def _escape(char: str) -> str:
    if char in '\\"':
        return "\\" + char
    if ord(char) < 0x20 or ord(char) == 0x7F:
        return f"\\u{ord(char):04x}"
    return char
