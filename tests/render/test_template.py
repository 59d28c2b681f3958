"""Chat templates, by the conventions of the Hugging Face hub.

1. Blocks are trimmed, loops can be left, tojson is plain JSON, time and errors are there, `generation` is its body.
2. The sandbox holds. 3. continue_final_message cuts where the message ends. 4. Content format is read off the tree.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.errors import InvalidRequestError
from tokenwire.render.template import CONTINUE_MARK, compile_template

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
MACRO = "{% macro f(c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}{% for m in messages %}"
TRIMS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n{% endfor %}"


def _render(text: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return compile_template(text).render(messages or HI, **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}", '{\n "a": [\n  2\n ],\n "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Hi!"),
        ("{% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}{{ dict(a=1).a }}", "21"),
        ("{{ x is defined }}{{ tools is none }}{{ add_generation_prompt }}", "FalseTrueFalse"),
    ],
)
def test_a_convention_of_the_hub(text: str, expected: str) -> None:
    assert _render(text) == expected


def test_variables_tools_and_documents_reach_the_template() -> None:
    text = "{{ bos_token }}{{ tools[0].name }}{{ documents[0].title }}{{ x }}"
    variables = {"bos_token": "<s>", "x": 5}
    assert _render(text, tools=[{"name": "f"}], documents=[{"title": "D"}], variables=variables) == "<s>fD5"


def test_the_time_is_the_servers() -> None:
    assert _render("{{ strftime_now('%Y') }}") == datetime.now().strftime("%Y")


def test_a_refusal_of_the_template_is_told_in_its_own_words() -> None:
    with pytest.raises(InvalidRequestError, match="^no system please$"):
        _render("{{ raise_exception('no system please') }}")


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.nothing.more }}",
    ],
)
def test_code_that_reaches_out_or_fails_is_the_requests_fault(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        _render(text)


def test_a_text_that_is_no_template_does_not_compile() -> None:
    with pytest.raises(InvalidRequestError, match="does not compile"):
        compile_template("{% if %}")


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="empty conversation"):
        compile_template(CHATML).render([])


@pytest.mark.parametrize("text", [CHATML, TRIMS])
@given(content=st.text(max_size=12))
def test_a_final_message_is_left_open_where_it_ends(text: str, content: str) -> None:
    messages = [*HI, {"role": "assistant", "content": content}]
    rendered = _render(text, messages, continue_final_message=True)
    shown = content if text is CHATML else content.strip()
    assert rendered == f"<|user|>Hi<|end|>\n<|assistant|>{shown}"
    assert messages[-1]["content"] == content


def test_the_last_text_part_is_left_open() -> None:
    text = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _render(text, [{"role": "assistant", "content": parts}], continue_final_message=True) == "[a][b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CHATML, {"role": "assistant", "content": None}),
        ("{% for m in messages %}{{ m.content | length }}{% endfor %}", {"role": "assistant", "content": "abc"}),
        ("{{ messages[0].content[0].x }}", {"role": "assistant", "content": [{"type": "image"}]}),
    ],
)
def test_a_message_that_cannot_be_left_open_is_refused(text: str, message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="continue_final_message"):
        _render(text, [message], continue_final_message=True)


def test_leaving_open_and_opening_another_turn_exclude_each_other() -> None:
    with pytest.raises(InvalidRequestError, match="not compatible"):
        _render(CHATML, continue_final_message=True, add_generation_prompt=True)


def test_the_mark_is_no_text_that_anyone_writes() -> None:
    assert all(0xE000 <= ord(CONTINUE_MARK[i]) <= 0xF8FF for i in (0, -2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHATML, "string"),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}", "openai"),
        (
            "{% set ms = messages[1:] %}{% for m in ms %}{% for p in m.content | list %}{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{% set content = messages[0].content %}{% for p in content %}{{ p }}{% endfor %}", "openai"),
        (
            MACRO + "{{ f(m.content) }}{% endfor %}",
            "openai",
        ),
        (
            MACRO + "{{ f(c=m.content) }}{% endfor %}",
            "openai",
        ),
        (
            MACRO + "{{ f(m.role) }}{% endfor %}",
            "string",
        ),
        ("{% macro f(content) %}{% for p in content %}{{ p }}{% endfor %}{% endmacro %}{{ f(1) }}", "string"),
        ("{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}", "string"),
    ],
)
def test_the_content_format_is_read_off_the_tree(text: str, expected: str) -> None:
    assert compile_template(text).content_format == expected
