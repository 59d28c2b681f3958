"""What a front end can say about a constraint without torch: refuse what no engine could compile.

It refuses only what is surely wrong: JSON that is none, a regex that neither Python nor llguidance can read. Everything
else is left to the engine's compiler, which knows both grammar libraries and the vocabulary.
"""

from __future__ import annotations

import re
import warnings

from tokenwire.engine.local.grammar.source import GrammarSource, invalid, read_source
from tokenwire.wire.sampling import StructuredOutputs


def check_structured_outputs(spec: StructuredOutputs) -> GrammarSource:
    """The canonical form of `spec`; raises `InvalidRequestError` if it can never be compiled."""
    source = read_source(spec)
    if source.kind == "regex":
        _check_regex(source.text)
    return source


def _check_regex(pattern: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as python_error:
        problem = _llguidance_problem(pattern)
        if problem:
            raise invalid(f"Grammar error: {problem.rstrip()}") from python_error


def _llguidance_problem(pattern: str) -> str | None:
    """What llguidance has against a regex; None if nothing, or if llguidance is not installed."""
    try:
        import llguidance
    except ImportError:
        return None
    return llguidance.LLMatcher.validate_grammar(llguidance.grammar_from("regex", pattern), None) or None
