"""One readable file per format, `tests/data/parsers/examples/*.txt`: an output and the message it means.

1. Each example's output, whole and character by character, gives exactly its message.
2. Every format of the table has such a file, so a new format is its entry and one more file.

A file begins with the parser's name and settings. An example begins with `=== title`, `(length)` in it for an output
that was cut off; then come the output and the message, one line a part.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.parser.conformance import DATA
from tests.parser.writing import TOOLS
from tokenwire.derender.parser import Message, MessageParser, ParserOptions, assemble, find_format
from tokenwire.derender.parser.formats import REASONING_FORMATS, TOOL_FORMATS

EXAMPLES = DATA / "examples"


class Example(NamedTuple):
    names: tuple[str | None, str | None]
    settings: dict[str, Any]
    title: str
    output: str
    message: str


def read(path: Path) -> list[Example]:
    head, *blocks = re.split(r"^=== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    words = dict(line.split(" ", 1) for line in head.splitlines() if line)
    names = words.pop("tool_parser", None), words.pop("reasoning_parser", None)
    settings = {key: json.loads(value) for key, value in words.items()}
    examples = []
    for block in blocks:
        title, rest = block.split("\n--- output\n")
        output, message = rest.rstrip("\n").split("\n--- message")
        examples.append(Example(names, settings, title, output, message.lstrip("\n")))
    return examples


def written(message: Message) -> str:
    parts = [("reasoning", message.reasoning), ("content", message.content)]
    lines = [f"{name} {json.dumps(text, ensure_ascii=False)}" for name, text in parts if text is not None]
    return "\n".join([*lines, *(f"call {call.name} {call.arguments}" for call in message.tool_calls)])


def all_examples() -> list[Any]:
    return [
        pytest.param(example, id=f"{path.stem}: {example.title}")
        for path in sorted(EXAMPLES.glob("*.txt"))
        for example in read(path)
    ]


@pytest.mark.parametrize("example", all_examples())
def test_an_output_means_its_message(example: Example) -> None:
    finish = "length" if "(length)" in example.title else "stop"
    prompt = "closed" if "closed in the prompt" in example.title else "undecided"
    for pieces in ([example.output], list(example.output)):
        options = ParserOptions(tools=TOOLS, prompt_reasoning=prompt, **example.settings)  # type: ignore[arg-type]
        parser = MessageParser(find_format(*example.names), options)
        deltas = [*(parser.feed(piece) for piece in pieces), parser.finish(finish)]
        assert written(assemble(deltas)) == example.message


def test_every_format_has_examples() -> None:
    assert {path.stem for path in EXAMPLES.glob("tool_*.txt")} == {f"tool_{name}" for name in TOOL_FORMATS}
    assert {path.stem for path in EXAMPLES.glob("reasoning_*.txt")} == {
        f"reasoning_{name}" for name in REASONING_FORMATS
    }
