"""Requests with a grammar wait here until it is compiled, and do not hold up the others.

The compiler, with its vocabulary and its libraries, is made when the first such request comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from tokenwire.engine.local.facts import ModelFacts
from tokenwire.engine.local.reasoning import Reasoning
from tokenwire.engine.local.requests import Request, Sequence
from tokenwire.engine.local.sampling import SequenceSampler
from tokenwire.errors import InvalidRequestError

if TYPE_CHECKING:
    from tokenwire.engine.local.grammar.compiler import CompiledGrammar, GrammarCompiler


class Grammars:
    """For one model. Not thread-safe: belongs to the core's loop."""

    def __init__(self, folder: Path, facts: ModelFacts, reasoning: Reasoning) -> None:
        self._folder = folder
        self._facts = facts
        self._reasoning = reasoning
        self._compiler: GrammarCompiler | None = None
        self._waiting: list[tuple[Request, Mapping[Sequence, SequenceSampler], Future[CompiledGrammar]]] = []

    @property
    def busy(self) -> bool:
        """Somebody waits for a compilation."""
        return bool(self._waiting)

    def hold(self, request: Request, samplers: Mapping[Sequence, SequenceSampler]) -> bool:
        """Start compiling what the request asks for; False if it asks for nothing."""
        spec = request.params.structured_outputs
        if spec is None:
            return False
        future: Future[CompiledGrammar]
        try:
            future = self._get_compiler().submit(spec)
        except InvalidRequestError as exc:
            future = Future()
            future.set_exception(exc)
        self._waiting.append((request, samplers, future))
        return True

    def take_finished(self) -> list[tuple[Request, InvalidRequestError | None]]:
        """Requests whose compilation has ended, with the reason if there can be no grammar."""
        if not self._waiting:
            return []
        finished: list[tuple[Request, InvalidRequestError | None]] = []
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            request, samplers, future = entry
            if not future.done():
                self._waiting.append(entry)
                continue
            problem = future.exception()
            if problem is None:
                self._attach(request, samplers, future.result())
                finished.append((request, None))
            elif isinstance(problem, InvalidRequestError):
                finished.append((request, problem))
            else:
                text = f"structured_outputs could not be compiled: {problem}"
                finished.append((request, InvalidRequestError(text, param="structured_outputs")))
        return finished

    def _get_compiler(self) -> GrammarCompiler:
        if self._compiler is None:
            from tokenwire.engine.local.grammar.compiler import GrammarCompiler

            if not (self._folder / "tokenizer.json").exists():
                raise InvalidRequestError(
                    "structured_outputs needs a tokenizer; the model has no tokenizer.json.",
                    param="structured_outputs",
                )
            self._compiler = GrammarCompiler(
                self._folder, vocab_size=self._facts.vocab_size, eos_token_ids=self._facts.eos_token_ids
            )
        return self._compiler

    def _attach(
        self, request: Request, samplers: Mapping[Sequence, SequenceSampler], compiled: CompiledGrammar
    ) -> None:
        stop_ids = [*self._facts.eos_token_ids, *(request.params.stop_token_ids or ())]
        end = self._reasoning.end_to_come(request)
        for sampler in samplers.values():
            sampler.grammar = compiled.matcher(stop_ids=stop_ids, reasoning_end_token_ids=end)
