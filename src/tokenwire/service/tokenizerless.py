"""How a server without a tokenizer calls itself when it refuses what needs one: by the flag that would change it."""

from __future__ import annotations

from tokenwire.engine.base import Engine

_NAMED_ONLY = ("remote", "null")
"""Engines that have no model folder, and so no tokenizer unless one is named."""


def without_tokenizer(engine: Engine | None) -> str:
    """`a server without a tokenizer (...)`"""
    name = None if engine is None else engine.info.name
    if name in _NAMED_ONLY:
        return f"a server without a tokenizer (--engine {name} has one with --tokenizer FOLDER)"
    return "a server without a tokenizer (--tokens-only, --skip-tokenizer-init)"
