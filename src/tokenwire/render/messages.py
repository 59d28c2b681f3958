"""Messages as clients send them, in the one form that templates and encoders see.

The rules are vLLM's (`parse_chat_messages`): content becomes one string, or a list of parts where the template loops
over it; text parts of several spellings become text; call arguments become objects; reasoning goes under both of its
names. What a caller sent is never changed in place. Media are taken out and listed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenwire.errors import InvalidRequestError
from tokenwire.render.content_format import ContentFormat

logger = logging.getLogger(__name__)

Message = dict[str, Any]

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Part type -> the field that holds its text."""
SKIPPED_WHEN_NULL = ("text", "refusal")
MEDIA_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "image_embeds": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
"""Part type, and its field -> modality."""
PART_FIELDS = frozenset({"type", "uuid", "detail", "name", "data", *TEXT_PARTS.values(), *TEXT_PARTS, *MEDIA_PARTS})
BILLING_HEADER = "x-anthropic-billing-header"
"""Claude Code's first system line; it changes with every request, so keeping it would defeat the prefix cache."""


@dataclass(slots=True, frozen=True)
class MediaItem:
    """One image, sound or video of a conversation, in reading order. `source` is a URL or an object, None if only
    `uuid` names it."""

    modality: str
    source: Any
    uuid: str | None


@dataclass(slots=True)
class Conversation:
    messages: list[Message] = field(default_factory=list)
    media: list[MediaItem] = field(default_factory=list)


def normalize(messages: Sequence[Mapping[str, Any]], content_format: ContentFormat) -> Conversation:
    """All messages in their normal form. Raises `InvalidRequestError` naming the message."""
    out = Conversation()
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        out.messages.append(_normalize_one(message, content_format, out.media, where))
    return out


def reasoning_of(message: Mapping[str, Any]) -> Any:
    """`reasoning`, or its older name `reasoning_content`."""
    value = message.get("reasoning")
    return message.get("reasoning_content") if value is None else value


def plain_text(content: Any) -> str | None:
    """The text of a content field of either shape, parts joined with nothing between; None where there is none."""
    if content is None or isinstance(content, str):
        return content
    texts = [part if isinstance(part, str) else part.get("text") for part in content]
    found = [text for text in texts if isinstance(text, str)]
    return "".join(found) if found else None


def count_tool_calls(messages: Iterable[Mapping[str, Any]]) -> int:
    """Calls that assistants made so far: sequential call ids go on from here."""
    calls = (message.get("tool_calls") for message in messages if message.get("role") == "assistant")
    return sum(len(found) for found in calls if isinstance(found, list))


def _normalize_one(
    message: Mapping[str, Any], content_format: ContentFormat, media: list[MediaItem], where: str
) -> Message:
    role = message["role"]
    parts = _parts(message.get("content"))
    if role == "system":
        parts = _without_billing_header(parts)
    content = _content(parts, content_format, media, where)
    out: Message = {"role": role, "content": content}
    if role == "assistant":
        _add_assistant_fields(out, message, where)
    elif role == "tool":
        if "tool_call_id" in message:
            out["tool_call_id"] = message["tool_call_id"]
        out["content"] = _tool_content(content)
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            out[name] = message[name]
    if role == "developer":
        out["tools"] = message.get("tools")
    return out


def _add_assistant_fields(out: Message, message: Mapping[str, Any], where: str) -> None:
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [_tool_call(call, f"{where}.tool_calls.{i}") for i, call in enumerate(calls)]
    reasoning = reasoning_of(message)
    if reasoning is not None:
        out["reasoning"] = out["reasoning_content"] = reasoning


def _parts(content: Any) -> list[Any]:
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _content(parts: list[Any], content_format: ContentFormat, media: list[MediaItem], where: str) -> Any:
    shaped = [_part(part, media, f"{where}.content.{i}") for i, part in enumerate(parts)]
    kept = [part for part in shaped if part is not None]
    if content_format == "openai":
        return kept
    return "\n".join(part["text"] for part in kept if part.get("text"))


def _part(part: Any, media: list[MediaItem], where: str) -> Message | None:
    """A text or media part as templates know it; None for a part that says nothing."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type")
    uuid = part.get("uuid")
    if kind is None or uuid is not None:
        kind = next((name for name in MEDIA_PARTS if name in part), kind)
    extras = {key: value for key, value in part.items() if key not in PART_FIELDS}
    if kind in TEXT_PARTS:
        text = part.get(TEXT_PARTS[kind])
        if text is None and kind in SKIPPED_WHEN_NULL:
            logger.warning("%s: a part of type %r without text is left out", where, kind)
            return None
        return {"type": "text", "text": _string(text, where), **extras}
    if kind in MEDIA_PARTS:
        source = part.get("image_url" if kind == "input_image" else kind)
        source = source.get("url") if isinstance(source, dict) and kind.endswith("_url") else source
        media.append(MediaItem(MEDIA_PARTS[kind], source, None if uuid is None else str(uuid)))
        return {"type": MEDIA_PARTS[kind], **extras}
    if kind == "tool_reference":
        return {"type": "tool_reference", "name": part.get("name"), "text": part.get("name")}
    if kind is None:
        raise InvalidRequestError("Missing 'type' field in multimodal part.", param=where)
    known = ", ".join(sorted([*TEXT_PARTS, *MEDIA_PARTS, "tool_reference"]))
    raise InvalidRequestError(f"Unsupported chat content part type: {kind!r}. Supported types: {known}.", param=where)


def _string(text: Any, where: str) -> str:
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text should be a string, got {type(text).__name__}.", param=where)
    return text


def _tool_content(content: Any) -> Any:
    """A list of texts as one string, since most templates know no parts in tool results; other parts stay."""
    if not isinstance(content, list) or any(part["type"] != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _without_billing_header(parts: list[Any]) -> list[Any]:
    out: list[Any] = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if part.get("type") == "text" else None
        if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
            out.append(part)
        elif rest := text.partition("\n")[2]:
            out.append(rest if isinstance(part, str) else {**part, "text": rest})
    return out


def _tool_call(call: Any, where: str) -> Message:
    if not isinstance(call, dict):
        raise InvalidRequestError("assistant tool_calls entries must be objects.", param=where)
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise InvalidRequestError("chat completions only support assistant tool_calls of type 'function'.", param=where)
    return {**call, "function": {**function, "arguments": _arguments(function, where)}}


def _arguments(function: Mapping[str, Any], where: str) -> Message:
    """Call arguments as an object. Text that is no JSON object becomes an empty one: it stands in the history, and an
    error would fail every later turn too."""
    given = function.get("arguments")
    value = given
    if isinstance(given, str) and given:
        try:
            value = json.loads(given)
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, dict):
        return value
    if given:
        logger.warning("%s: arguments of %r are no JSON object, taken as {}", where, function.get("name"))
    return {}
