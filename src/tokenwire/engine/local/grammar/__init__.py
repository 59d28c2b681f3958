"""Structured outputs: what a request may demand of its text, turned into masks over token ids.

`check_structured_outputs` is light and safe in a front end. `compiler.GrammarCompiler` loads xgrammar, llguidance and,
through xgrammar, torch, so it is imported from its own module where an engine needs it.
"""

from tokenwire.engine.local.grammar.checks import check_structured_outputs
from tokenwire.engine.local.grammar.source import GrammarSource

__all__ = ["GrammarSource", "check_structured_outputs"]
