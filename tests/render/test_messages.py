"""Messages in their normal form.

1. Content: one string or a list of parts, as the template wants it; text parts of any spelling. 2. Call arguments
are objects, whatever the history holds. 3. Reasoning has both names. 4. Media are listed in reading order.
5. What the caller sent stays as it was. 6. Developer messages become system messages at the front.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tokenwire.errors import InvalidRequestError
from tokenwire.render.content_format import ContentFormat
from tokenwire.render.developer import without_developer_role
from tokenwire.render.messages import MediaItem, count_tool_calls, normalize


def _one(message: dict[str, Any], content_format: ContentFormat = "string") -> dict[str, Any]:
    before = copy.deepcopy(message)
    normal = normalize([message], content_format).messages[0]
    assert message == before
    return normal


PARTS = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, {"type": "refusal", "refusal": "c"}, "d"]


@pytest.mark.parametrize(
    ("content", "as_string", "as_parts"),
    [
        ("x", "x", [{"type": "text", "text": "x"}]),
        (None, "", []),
        ("", "", [{"type": "text", "text": ""}]),
        (PARTS, "a\nb\nc\nd", [{"type": "text", "text": t} for t in "abcd"]),
        ([{"type": "text", "text": None}, {"type": "text", "text": "x"}], "x", [{"type": "text", "text": "x"}]),
        ([{"type": "text", "text": "x", "cache": 1}], "x", [{"type": "text", "text": "x", "cache": 1}]),
    ],
)
def test_content_is_a_string_or_parts(content: Any, as_string: str, as_parts: list[Any]) -> None:
    assert _one({"role": "user", "content": content})["content"] == as_string
    assert _one({"role": "user", "content": content}, "openai")["content"] == as_parts


def test_tool_results_of_several_texts_are_one_string_in_either_format() -> None:
    message = {"role": "tool", "tool_call_id": "c1", "content": PARTS[:2]}
    for content_format in ("string", "openai"):
        assert _one(message, content_format) == {"role": "tool", "tool_call_id": "c1", "content": "a\nb"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("{broken", {}),
        ("[1]", {}),
        ("42", {}),
        ("[" * 100_000, {}),
    ],
)
def test_call_arguments_are_objects(arguments: Any, expected: dict[str, Any]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    normal = _one({"role": "assistant", "content": None, "tool_calls": [call]})
    assert normal["tool_calls"] == [{**call, "function": {"name": "f", "arguments": expected}}]


def test_an_empty_call_list_is_no_call_list() -> None:
    assert "tool_calls" not in _one({"role": "assistant", "content": "x", "tool_calls": []})


@pytest.mark.parametrize("call", ["x", {"type": "custom", "custom": {}}, {"type": "function"}])
def test_a_call_that_is_none_is_refused(call: Any) -> None:
    with pytest.raises(InvalidRequestError, match="tool_calls"):
        normalize([{"role": "assistant", "tool_calls": [call]}], "string")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_goes_under_both_names(name: str) -> None:
    normal = _one({"role": "assistant", "content": "x", name: "r"})
    assert normal == {"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"}


def test_media_are_listed_and_leave_a_part_behind() -> None:
    content = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "u1"}},
        {"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}},
        {"image_url": "u2", "uuid": 7},
        {"type": "video_url", "video_url": {"url": "u3"}, "fps": 2},
    ]
    conversation = normalize([{"role": "user", "content": content}], "openai")
    assert conversation.messages[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image"},
        {"type": "audio"},
        {"type": "image"},
        {"type": "video", "fps": 2},
    ]
    assert conversation.media == [
        MediaItem("image", "u1", None),
        MediaItem("audio", {"data": "d", "format": "wav"}, None),
        MediaItem("image", "u2", "7"),
        MediaItem("video", "u3", None),
    ]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "hologram"}, "Unsupported chat content part type: 'hologram'"),
        ({"text": "x"}, "Missing 'type'"),
        ({"type": "thinking", "thinking": 5}, "should be a string"),
    ],
)
def test_a_part_of_unknown_kind_is_refused(part: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        normalize([{"role": "user", "content": [part]}], "string")


def test_a_billing_header_is_taken_off_system_messages() -> None:
    header = "x-anthropic-billing-header: cch=1"
    for content in (f"{header}\nBe kind.", [{"type": "text", "text": header}, {"type": "text", "text": "Be kind."}]):
        assert _one({"role": "system", "content": content})["content"] == "Be kind."
    assert _one({"role": "user", "content": header})["content"] == header


def test_calls_of_the_history_are_counted() -> None:
    calls = [{"id": "1"}, {"id": "2"}]
    messages = [{"role": "assistant", "tool_calls": calls}, {"role": "tool"}, {"role": "assistant", "tool_calls": None}]
    assert count_tool_calls(messages) == 2


def test_developer_messages_become_one_system_message_in_front() -> None:
    user = {"role": "user", "content": "u"}
    messages = [{"role": "system", "content": "a"}, user, {"role": "developer", "content": "b", "tools": None}]
    assert without_developer_role(messages) == [{"role": "system", "content": "a\n\nb"}, user]
    assert without_developer_role([{"role": "developer", "content": "b", "tools": 1}, user])[0] == {
        "role": "system",
        "content": "b",
    }
    untouched = [user, {"role": "system", "content": "a"}]
    assert without_developer_role(untouched) is untouched
