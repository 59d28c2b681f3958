"""From a request's constraint to matchers, away from the engine's step.

Both grammar libraries are tried as vLLM's `auto` backend does: xgrammar first, llguidance for what xgrammar cannot
express and for its better complaints. Compiled grammars are cached; equal requests in flight share one compilation.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tokenwire.engine.local.grammar.llguidance_backend import LlguidanceBackend
from tokenwire.engine.local.grammar.matcher import Automaton, GrammarMatcher, clear_bits
from tokenwire.engine.local.grammar.pool import CompilePool
from tokenwire.engine.local.grammar.source import GrammarSource, invalid, read_source
from tokenwire.engine.local.grammar.vocabulary import Vocabulary
from tokenwire.engine.local.grammar.xgrammar_backend import XgrammarBackend
from tokenwire.wire.sampling import StructuredOutputs


class BackendGrammar(Protocol):
    """What a grammar library's compiled grammar offers."""

    @property
    def size_bytes(self) -> int: ...
    def automaton(self, stop_ids: Sequence[int]) -> Automaton: ...


@dataclass(slots=True, frozen=True)
class CompiledGrammar:
    """A grammar ready to be followed by any number of sequences."""

    source: GrammarSource
    grammar: BackendGrammar

    def matcher(self, *, stop_ids: Sequence[int], reasoning_end_token_ids: Sequence[int] = ()) -> GrammarMatcher:
        """A fresh matcher. `stop_ids`: EOS set and the request's stop ids; they are allowed where the text is complete.

        Leave `reasoning_end_token_ids` empty if the reasoning is already over or the model has none.
        """
        automaton = self.grammar.automaton(stop_ids)
        return GrammarMatcher(automaton, stop_ids=stop_ids, reasoning_end_token_ids=reasoning_end_token_ids)


class GrammarCompiler:
    """Compiles in threads of its own. `tokenizer` is a folder with tokenizer.json or tekken.json, or that file.

    `compact_json` and `closed_objects` are the server's defaults (`--structured-outputs-config`'s
    disable_any_whitespace and disable_additional_properties); a request can turn them on for itself unless
    `request_options` is false. `cache_bytes` bounds what finished grammars may hold.
    """

    def __init__(
        self,
        tokenizer: Path,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        compact_json: bool = False,
        closed_objects: bool = False,
        request_options: bool = True,
        workers: int = 1,
        timeout_s: float = 10.0,
        cache_bytes: int = 512 << 20,
    ) -> None:
        self._vocabulary = Vocabulary(tokenizer, vocab_size, tuple(eos_token_ids))
        self._xgrammar = XgrammarBackend(self._vocabulary, threads=1)
        self._llguidance = LlguidanceBackend(self._vocabulary)
        self._options = {
            "compact": compact_json,
            "closed_objects": closed_objects,
            "request_options": request_options,
        }
        self._pool = CompilePool(workers=workers, timeout_s=timeout_s)
        self._cache = _Cache(cache_bytes)

    def submit(self, spec: StructuredOutputs) -> Future[CompiledGrammar]:
        """Start compiling; done at once if cached.

        The future is shared between equal requests, so nobody may cancel it. It fails with `InvalidRequestError` where
        no grammar is possible.
        """
        try:
            source = read_source(spec, **self._options)
        except Exception as exc:
            failed: Future[CompiledGrammar] = Future()
            failed.set_exception(exc)
            return failed
        return self._cache.get(source, lambda: self._pool.submit(lambda: self._compile(source)))

    def warm_up(self) -> Future[CompiledGrammar]:
        """Load the vocabulary in the background (a second or so) before the first request needs it."""
        return self.submit(StructuredOutputs(json_object=True))

    def close(self) -> None:
        """End the threads; futures still open are finished first."""
        self._pool.close()

    def _compile(self, source: GrammarSource) -> CompiledGrammar:
        grammar = self._xgrammar.compile(source) or self._llguidance.compile(source)
        self._refuse_dead_end(source, grammar)
        return CompiledGrammar(source, grammar)

    def _refuse_dead_end(self, source: GrammarSource, grammar: BackendGrammar) -> None:
        """Some impossible constraints compile, and show only in a first mask that leads nowhere."""
        words = np.zeros((self._vocabulary.vocab_size + 31) // 32, dtype=np.int32)
        if not grammar.automaton(self._vocabulary.eos_token_ids).fill(words):
            return
        if source.is_json:  # the empty text is no JSON, so the first token cannot be a stop id
            clear_bits(words, self._vocabulary.eos_token_ids)
        if not words.any():
            raise invalid(f"structured_outputs.{source.kind} cannot be met by any text.")


class _Cache:
    """Least recently used goes first. Holds futures, so that equal requests wait for one compilation."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._entries: OrderedDict[GrammarSource, Future[CompiledGrammar]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, source: GrammarSource, start: _Start) -> Future[CompiledGrammar]:
        with self._lock:
            found = self._entries.get(source)
            if found is not None:
                self._entries.move_to_end(source)
                return found
            future = self._entries[source] = start()
        future.add_done_callback(lambda done: self._settle(source, done))
        return future

    def _settle(self, source: GrammarSource, done: Future[CompiledGrammar]) -> None:
        with self._lock:
            if done.cancelled() or done.exception() is not None:
                self._entries.pop(source, None)
                return
            finished = [(s, f) for s, f in self._entries.items() if f.done() and f.exception() is None]
            total = sum(f.result().grammar.size_bytes for _, f in finished)
            for old, future in finished[:-1]:
                if total <= self._limit:
                    break
                total -= future.result().grammar.size_bytes
                del self._entries[old]


class _Start(Protocol):
    def __call__(self) -> Future[CompiledGrammar]: ...
