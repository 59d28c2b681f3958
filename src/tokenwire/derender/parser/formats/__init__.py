"""The table of formats, by the names that vLLM's `--tool-call-parser` and `--reasoning-parser` take.

A new format is one entry in a file beside this one, in the words of `format.py`, and one readable file of examples
in `tests/data/parsers/examples`. The property tests take it up by themselves.
"""

from __future__ import annotations

from functools import lru_cache

from tokenwire.derender.parser.format import Format, HarmonyCalls, ReasoningFormat, ToolFormat
from tokenwire.derender.parser.formats import json_formats, other_formats, reasoning_formats, recent_formats
from tokenwire.errors import InvalidRequestError

TOOL_FORMATS: dict[str, ToolFormat] = {
    entry.name: entry for entry in (*json_formats.FORMATS, *other_formats.FORMATS, *recent_formats.FORMATS)
}
TOOL_ALIASES = {
    "qwen3_json": "hermes",
    "llama4_json": "llama3_json",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "glm47": "glm45",
    "ling3": "glm45",
}
REASONING_FORMATS: dict[str, ReasoningFormat] = {entry.name: entry for entry in reasoning_formats.FORMATS}
REASONING_ALIASES = {"glm47": "glm45", "ling3": "glm45", "minicpmv": "qwen3"}


class UnknownFormatError(InvalidRequestError):
    """A parser name that is not in the table."""

    def __init__(self, option: str, name: str, known: list[str]) -> None:
        self.name = name
        self.known = known
        super().__init__(f"{option}={name!r} is not known. Known names: {', '.join(known)}.", param=option)


def known_tool_parsers() -> list[str]:
    """All names that `find_format` takes for the tool parser."""
    return sorted((*TOOL_FORMATS, *TOOL_ALIASES))


def known_reasoning_parsers() -> list[str]:
    """All names that `find_format` takes for the reasoning parser."""
    return sorted((*REASONING_FORMATS, *REASONING_ALIASES))


@lru_cache(maxsize=256)
def find_format(tool_parser: str | None, reasoning_parser: str | None) -> Format:
    """The format of a tool parser and a reasoning parser; null and `""` mean none. `UnknownFormatError` for others."""
    tools = reasoning = None
    if tool_parser:
        tools = TOOL_FORMATS.get(TOOL_ALIASES.get(tool_parser, tool_parser))
        if tools is None:
            raise UnknownFormatError("tool_call_parser", tool_parser, known_tool_parsers())
    if reasoning_parser:
        reasoning = REASONING_FORMATS.get(REASONING_ALIASES.get(reasoning_parser, reasoning_parser))
        if reasoning is None:
            raise UnknownFormatError("reasoning_parser", reasoning_parser, known_reasoning_parsers())
    if tools is not None and reasoning is not None and isinstance(tools.syntax, HarmonyCalls) != reasoning.harmony:
        raise InvalidRequestError(
            f"tool_call_parser={tool_parser!r} and reasoning_parser={reasoning_parser!r} do not go together: "
            "openai and openai_gptoss read one format, and only each other.",
            param="tool_call_parser",
        )
    return Format(tools=tools, reasoning=reasoning)
