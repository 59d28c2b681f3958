"""What a model means is what the parser gives, for every format of the table.

1. A message written in a format and parsed is the message: reasoning, content, names, arguments, order.
2. However the text is cut, the message is the same.
3. The state may be carried away and brought back between any two pieces.
4. No output, well-formed, cut off or mangled, makes the parser raise.
"""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.parser.writing import TOOLS, write_message
from tokenwire.derender.parser import (
    Format,
    Message,
    MessageParser,
    ParserOptions,
    assemble,
    find_format,
    known_reasoning_parsers,
    known_tool_parsers,
)
from tokenwire.derender.parser.format import JsonCalls, ListedCalls

# Formats whose content may not come beside calls (the call must be the first thing), or is dropped there by rule.
ALONE = {"pythonic", "llama4_pythonic", "xlam"}

PAIRS: list[tuple[str | None, str | None]] = [
    *((name, None) for name in known_tool_parsers()),
    *((None, name) for name in known_reasoning_parsers()),
    ("hermes", "qwen3"),
    ("qwen3_coder", "qwen3"),
    ("deepseek_v31", "deepseek_v3"),
    ("deepseek_v4", "deepseek_v4"),
    ("glm45", "glm45"),
    ("kimi_k2", "kimi_k2"),
    ("kimi_k3", "kimi_k3"),
    ("mistral", "mistral"),
    ("gemma4", "gemma4"),
    ("granite", "granite"),
    ("openai", "openai_gptoss"),
    ("cohere_command3", "cohere_command3"),
    ("inkling", "inkling"),
    ("llama3_json", "nemotron_v3"),
]

words = st.text(alphabet="ab é😀\n'\"\\{}[],:<|>", min_size=0, max_size=12)
arguments = st.fixed_dictionaries({}, optional={"city": words, "days": st.integers(-9, 9999), "exact": st.booleans()})
calls = st.lists(st.one_of(st.tuples(st.just("get_weather"), arguments), st.just(("ping", {}))), min_size=0, max_size=3)


def options(**changes: object) -> ParserOptions:
    settings_: dict[str, object] = {
        "tools": TOOLS,
        "chat_template_kwargs": {"thinking": True, "reasoning_effort": "high"},
    }
    return ParserOptions(**{**settings_, **changes})  # type: ignore[arg-type]


def parse(
    format: Format, pieces: list[str], finish: str = "stop", *, carry: bool = False, **changes: object
) -> Message:
    parser = MessageParser(format, options(**changes))
    deltas = []
    for piece in pieces:
        deltas.append(parser.feed(piece))
        if carry:
            state = msgspec.json.decode(msgspec.json.encode(parser.state))
            parser = MessageParser(format, options(**changes), state)
    deltas.append(parser.finish(finish))
    return assemble(deltas)


def value(message: Message) -> tuple[object, ...]:
    return message.content, message.reasoning, [(call.name, call.arguments) for call in message.tool_calls]


def cut(text: str, places: list[int]) -> list[str]:
    inside = sorted(place % (len(text) + 1) for place in places)
    return [text[a:b] for a, b in zip([0, *inside], [*inside, len(text)], strict=True)]


def plain(arguments_: dict[str, object]) -> dict[str, object]:
    """Without what some formats cannot write: markers' own characters, white space at the ends."""
    return {
        key: "".join(c for c in item if c not in "<>|]\"'\\").strip() if isinstance(item, str) else item
        for key, item in arguments_.items()
    }


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls=calls, places=st.lists(st.integers(0, 2000), max_size=6))
def test_a_written_message_comes_back(
    pair: tuple[str | None, str | None], calls: list[tuple[str, dict[str, object]]], places: list[int]
) -> None:
    format = find_format(*pair)
    calls = [(name, plain(given_)) for name, given_ in calls] if format.tools else []
    reasoning = "Let me think." if format.reasoning and format.reasoning.start else ""
    alone = format.tools is not None and format.tools.name in ALONE and calls
    content = "" if alone else "Sure."
    text = write_message(format, reasoning=reasoning, content=content, calls=calls)
    got = parse(format, cut(text, places))
    spec = format.reasoning
    shown = spec.start[0] + reasoning if spec and spec.keep_start else reasoning
    assert (got.content or "").strip() == (spec.content_prefix if spec else "") + content
    assert got.reasoning == (shown or None)
    assert [(call.name, json.loads(call.arguments)) for call in got.tool_calls] == calls


def _vocabulary(format: Format) -> list[str]:
    """Every string of a format's data, and what else outputs are made of."""
    found = {
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        " ",
        "\n",
        "\\",
        "'",
        "(",
        ")",
        "=",
        "x",
        "é😀",
        "get_weather",
        "1",
        "null",
    }
    found |= {'"name": "get_weather"', '"arguments": {', '"parameters": ', "</s>", "city", ">", "<", "```", "call:"}

    def collect(item: object) -> None:
        if isinstance(item, str):
            found.add(item)
        elif isinstance(item, tuple):
            for part in item:
                collect(part)
        elif isinstance(item, msgspec.Struct):
            for name in item.__struct_fields__:
                collect(getattr(item, name))

    collect(format)
    return sorted(found - {""})


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_cut_of_any_output_gives_one_message(pair: tuple[str | None, str | None], data: st.DataObject) -> None:
    format = find_format(*pair)
    well_formed = write_message(
        format,
        reasoning="hm" if format.reasoning and format.reasoning.start else "",
        content=data.draw(st.sampled_from(["", "Sure.", "\n\n", " a\n"])),
        calls=data.draw(calls) if format.tools else (),
    )
    soup = "".join(data.draw(st.lists(st.sampled_from(_vocabulary(format)), max_size=14)))
    at = data.draw(st.integers(0, len(well_formed)))
    text = data.draw(st.sampled_from([well_formed, well_formed[:at], well_formed[:at] + soup + well_formed[at:], soup]))
    finish = data.draw(st.sampled_from(["stop", "length"]))
    changes = data.draw(
        st.sampled_from(
            [
                {},
                {"tool_choice": "required"},
                {"tool_choice": "get_weather"},
                {"tool_choice": "none"},
                {"parallel_tool_calls": False},
                {"include_reasoning": False},
                {"prompt_reasoning": "closed"},
                {"chat_template_kwargs": {"force_nonempty_content": True}},
                {"chat_template_kwargs": {"thinking": False, "enable_thinking": False}},
            ]
        )
    )
    whole = value(parse(format, [text], finish, **changes))
    assert value(parse(format, list(text), finish, **changes)) == whole
    pieces = cut(text, data.draw(st.lists(st.integers(0, 2000), max_size=6)))
    assert value(parse(format, pieces, finish, carry=True, **changes)) == whole


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_first_delta_of_an_index_names_the_call_and_no_other_does(pair: tuple[str | None, str | None]) -> None:
    format = find_format(*pair)
    if format.tools is None:
        return
    made = [("get_weather", {"city": "Rome", "days": 3}), ("ping", {}), ("get_weather", {})]
    parser = MessageParser(format, options(prompt_reasoning="closed"))
    seen: list[int] = []
    ids: list[str] = []
    deltas = [parser.feed(character) for character in write_message(format, calls=made)]
    deltas.append(parser.finish("stop"))
    for call in (call for delta in deltas for call in delta.tool_calls):
        first = call.index not in seen
        assert (call.id is not None) is first
        assert (call.name is not None) is first
        if first:
            seen.append(call.index)
            ids.append(call.id or "")
    assert seen == [0, 1, 2]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_work_and_memory_do_not_grow_with_the_output(pair: tuple[str | None, str | None]) -> None:
    """Clause of its own: what a delta costs does not depend on what came before, in steps and in kept state."""
    format = find_format(*pair)
    reasoning = "hm" if format.reasoning and format.reasoning.start else ""
    dice = random.Random(7)
    tokens = [dice.choice([" the", " city", " of", " Rome", ",", ".", "\n", " 42"]) for _ in range(10_000)]
    syntax = format.tools.syntax if format.tools else None
    whole_calls = isinstance(syntax, ListedCalls) or (isinstance(syntax, JsonCalls) and syntax.whole == "always")
    prefixes = [write_message(format, reasoning=reasoning, content="Sure.")]
    if format.tools is not None and not whole_calls:
        call = write_message(format, calls=[("get_weather", {"city": "ZZZ"})])
        prefixes.append(call[: call.index("ZZZ") + 1])
        opener = write_message(format, calls=[("get_weather", {})]).partition("get_weather")[0]
        prefixes.append(opener)
    for prefix in prefixes:
        parser = MessageParser(format, options(prompt_reasoning="undecided" if reasoning else "closed"))
        parser.feed(prefix)
        worst = 0
        for token in tokens:
            before = parser.steps
            parser.feed(token)
            worst = max(worst, parser.steps - before)
        assert worst <= 8
        assert len(msgspec.json.encode(parser.state)) < 3000
