"""The state that travels with the client, and the table of formats.

1. A state survives JSON and MessagePack, and a parser goes on from it with the same call ids and indexes.
2. A state that was tampered with is refused, or does no harm: a parser goes on and does not raise.
3. All names that vLLM knows are known, but for those told in `LEFT_OUT`; unknown ones are refused with the known ones.
4. A chat template's markers say which format it speaks; none say none.
5. Where a tokenizer tells a format's dialects apart, a model is read in its own; without one both are read.
6. A list that ends at the first `]` is calls, text or nothing as soon as that bracket comes, whatever follows.
"""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parser.writing import TOOLS, write_message
from tokenwire.derender.parser import (
    Detected,
    MessageParser,
    ParserOptions,
    UnknownFormatError,
    assemble,
    detect_format,
    find_format,
    known_reasoning_parsers,
    known_tool_parsers,
)
from tokenwire.errors import InvalidRequestError, InvalidStateError

TEXT = 'Ok <tool_call>{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}</tool_call>'


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
def test_a_state_survives_the_journey(codec: object) -> None:
    format, options = find_format("hermes", "qwen3"), ParserOptions(tools=TOOLS, prompt_reasoning="closed")
    parser = MessageParser(format, options)
    deltas = []
    for character in TEXT:
        deltas.append(parser.feed(character))
        state = codec.decode(codec.encode(parser.state))  # type: ignore[attr-defined]
        parser = MessageParser(format, options, state)
    deltas.append(parser.finish("stop"))
    message = assemble(deltas)
    assert message.content == "Ok "
    assert [json.loads(call.arguments) for call in message.tool_calls] == [{"city": "Rome", "days": 3}]


def test_nothing_comes_after_the_end() -> None:
    format, options = find_format(None, None), ParserOptions()
    parser = MessageParser(format, options)
    assert parser.feed("a").content == "a" or parser.finish().content == "a"
    parser.finish()
    again = MessageParser(format, options, parser.state)
    assert not again.feed("b")
    assert not again.finish()


@pytest.mark.parametrize(
    "state",
    [None, 1, "x", {}, {"version": 1}, [], [2], ["1"], [1, 99], [1, -1], [1, 2, 3], [1, 2, "", "", "", "", "", 0, 1]],
    ids=repr,
)
def test_what_is_no_state_is_refused(state: object) -> None:
    if state in (None, []):
        MessageParser(find_format("hermes", None), ParserOptions(), state or None)
        return
    with pytest.raises(InvalidStateError, match="invalid stream_state: parser"):
        MessageParser(find_format("hermes", None), ParserOptions(), state)


NAMES = [
    ("hermes", "qwen3"),
    ("qwen3_coder", None),
    ("pythonic", None),
    ("gemma4", "gemma4"),
    ("openai", "openai_gptoss"),
]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_tampered_state_does_no_harm(data: st.DataObject) -> None:
    names = data.draw(st.sampled_from(NAMES))
    format, options = find_format(*names), ParserOptions(tools=TOOLS)
    text = write_message(format, content="a", calls=[("get_weather", {"city": "b", "days": 1})])
    parser = MessageParser(format, options)
    parser.feed(text[: data.draw(st.integers(0, len(text)))])
    state = parser.state
    for place in data.draw(st.lists(st.integers(1, len(state) - 1), min_size=1, max_size=4)):
        kinds = {str: st.text(max_size=5), bool: st.booleans(), int: st.integers(-2, 9)}
        state[place] = data.draw(st.one_of(kinds.get(type(state[place]), st.none()), st.none()))
    try:
        parser = MessageParser(format, options, state)
    except InvalidStateError:
        return
    with suppress(InvalidStateError):
        parser.feed(text)
        parser.finish("stop")


LEFT_OUT = {"hf", "minimax_m3", "muse_glimmer"}
"""`hf` needs the tokenizer's own response template; the others nest their markup in ways the table has no words for."""

VLLM_TOOL_PARSERS = frozenset(
    """
    dots deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 cohere_command3 cohere_command4
    ernie45 glm45 glm47 ling3 granite-20b-fc granite granite4 hermes hf poolside_v1 hunyuan_a13b hy_v3 hy_v4
    internlm jamba lfm2 kimi_k2 kimi_k3 k2_horizon llama3_json llama4_json llama4_pythonic longcat mimo
    minimax_m2 minimax_m3 minicpm5 mistral olmo3 plamo3 muse_glimmer openai phi4_mini_json pythonic
    qwen3_coder qwen3_json qwen3_xml seed_oss step3 step3p5 inkling xlam gigachat3 functiongemma gemma4
    apertus
    """.split()  # noqa: SIM905
)
VLLM_REASONING_PARSERS = frozenset(
    """
    deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 poolside_v1 cohere_command3 cohere_command4 ernie45
    gemma4 glm45 glm47 ling3 openai_gptoss granite granite_thinking_parser hf holo2 hunyuan_a13b hy_v3 hy_v4
    kimi_k2 kimi_k3 k2_horizon mimo minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral nemotron_v3
    olmo3 plamo3 muse_glimmer qwen3 seed_oss step3 step3p5 inkling
    """.split()  # noqa: SIM905
)


def test_the_names_of_vllm_are_known() -> None:
    assert set(VLLM_TOOL_PARSERS) - LEFT_OUT <= set(known_tool_parsers())
    assert set(VLLM_REASONING_PARSERS) - LEFT_OUT <= set(known_reasoning_parsers())


@pytest.mark.parametrize("names", [("nope", None), (None, "nope")])
def test_an_unknown_name_is_refused_with_the_known_ones(names: tuple[str | None, str | None]) -> None:
    with pytest.raises(UnknownFormatError, match="'nope' is not known. Known names: .*glm45"):
        find_format(*names)


@pytest.mark.parametrize("names", [("hermes", "openai_gptoss"), ("openai", "qwen3")])
def test_harmony_goes_with_itself_only(names: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="do not go together"):
        find_format(*names)


def test_analysis_is_not_shown_where_reasoning_is_not_read() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    parser = MessageParser(find_format("openai", None), ParserOptions())
    message = assemble([parser.feed(text), parser.finish("stop")])
    assert (message.reasoning, message.content) == (None, "Yes.")


def test_aliases_are_the_same_format() -> None:
    assert find_format("qwen3_xml", "glm47") == find_format("qwen3_coder", "glm45")
    assert find_format("", "").name == "plain"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<|im_start|>' }}<tool_call>...</think>", Detected("hermes", "qwen3")),
        ("<|im_start|><tool_call>\n<function=f></think>", Detected("qwen3_coder", "qwen3")),
        ("[gMASK]<sop><tool_call><arg_key></think>", Detected("glm45", "glm45")),
        ("<|start|>assistant<|channel|>analysis<|message|> functions", Detected("openai", "openai_gptoss")),
        ("<|start_header_id|>{{ m.content }}", Detected(None, None)),
    ],
)
def test_a_template_says_which_format_it_speaks(template: str, expected: Detected) -> None:
    assert detect_format(template) == expected
    find_format(*detect_format(template))


HEADED = '[TOOL_CALLS]ping[ARGS]{"a": 1}'
LISTED = '[TOOL_CALLS] [{"name": "ping", "arguments": {"a": 1}}]'
BARE = LISTED.removeprefix("[TOOL_CALLS] ")


def _calls(name: str, text: str, *, has_args: bool | None = None, finish: str = "stop", choice: str = "auto") -> object:
    """The calls as pairs, or the content where there are none; the same whole and by character."""
    format = find_format(name, None)
    if has_args is not None:
        format = format.for_tokenizer(lambda token: has_args if token == "[ARGS]" else False)
    answers = []
    for pieces in ([text], list(text)):
        parser = MessageParser(format, ParserOptions(tools=TOOLS, tool_choice=choice))
        message = assemble([*(parser.feed(piece) for piece in pieces), parser.finish(finish)])
        answers.append([(call.name, call.arguments) for call in message.tool_calls] or message.content)
    assert answers[0] == answers[1]
    return answers[0]


@pytest.mark.parametrize(
    ("has_args", "text", "choice", "expected"),
    [
        (True, HEADED, "auto", [("ping", '{"a": 1}')]),
        (True, LISTED, "auto", [("[", '{"name": "ping", "arguments": {"a": 1}}')]),
        (True, BARE, "required", BARE),
        (False, LISTED, "auto", [("ping", '{"a": 1}')]),
        (False, "[TOOL_CALLS]" + LISTED, "auto", [("ping", '{"a": 1}')]),
        (False, HEADED, "auto", 'ping[ARGS]{"a": 1}'),
        (False, BARE, "auto", BARE),
        (False, BARE, "required", [("ping", '{"a": 1}')]),
        (False, '{"a": 1}', "ping", '{"a": 1}'),
        (None, HEADED, "auto", [("ping", '{"a": 1}')]),
        (None, LISTED, "auto", [("ping", '{"a": 1}')]),
    ],
)
def test_a_tokenizer_tells_dialects_apart(has_args: bool | None, text: str, choice: str, expected: object) -> None:
    assert _calls("mistral", text, has_args=has_args, choice=choice) == expected


def test_a_tokenizer_changes_nothing_where_there_is_one_dialect() -> None:
    format = find_format("hermes", "qwen3")
    assert format.for_tokenizer(lambda token: False) == format
    assert find_format(None, "qwen3").for_tokenizer(lambda token: True) == find_format(None, "qwen3")


@pytest.mark.parametrize(
    ("text", "finish", "expected"),
    [
        ('functools[{"name": "f", "arguments": {"a": 1}}]', "stop", [("f", '{"a": 1}')]),
        (
            'functools[{"parameters": {}, "name": "f"}, {"name": "g", "arguments": {}}]',
            "stop",
            [("f", "{}"), ("g", "{}")],
        ),
        ('functools[{"name": "f", "arguments": {"a": [1], "b": 2}}] More.', "stop", None),
        ('functools[{"name": "f", "arguments": {"a": "x]y"}}]', "stop", None),
        ("functools[no call] More.", "stop", None),
        ("functools[] More.", "stop", None),
        ('functools[{"a": 1}] More.', "stop", 'functools[{"a": 1}] More.'),
        ("functools[1, 2] More.", "stop", "functools[1, 2] More."),
        ("functools [x] More.", "stop", "functools [x] More."),
        ("functools[no call", "length", "functools[no call"),
        ('functools[{"name": "f", "arguments": {"a": "x', "length", [("f", '{"a": "x')]),
        ('functools[{"name": "f", "arguments": {"a": [1], "b": ', "length", None),
    ],
)
def test_a_list_up_to_its_first_bracket_is_calls_or_text_or_nothing(text: str, finish: str, expected: object) -> None:
    assert _calls("phi4_mini_json", text, finish=finish) == expected
