"""Developer messages for templates that do not know the role: they become system messages, all in one at the front.

Some templates accept a system message only as the very first one, so after the change they are merged.
"""

from __future__ import annotations

from typing import Any

from tokenwire.render.messages import Message


def without_developer_role(messages: list[Message]) -> list[Message]:
    """The messages unchanged if none is a developer's; else developer turned to system, and merged at the front."""
    if all(message["role"] != "developer" for message in messages):
        return messages
    return _merged([_as_system(message) if message["role"] == "developer" else message for message in messages])


def _as_system(message: Message) -> Message:
    return {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}


def _merged(messages: list[Message]) -> list[Message]:
    at = [index for index, message in enumerate(messages) if message["role"] == "system"]
    if at == [0]:
        return messages
    texts = [text for index in at if (text := _text(messages[index].get("content")))]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if "text" in part)
    return content or ""
