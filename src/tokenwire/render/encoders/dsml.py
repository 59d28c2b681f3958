"""What the DeepSeek formats from V3.2 on share: special tokens and the DSML spelling of tool calls.

The formats are DeepSeek's own (`encoding_dsv32.py` and its successor, published with the models); no template file
describes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenwire.errors import InvalidRequestError
from tokenwire.render.messages import Message

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def schemas(tools: Sequence[Mapping[str, Any]]) -> str:
    """One function schema a line."""
    return "\n".join(to_json(tool["function"]) for tool in tools)


def response_format_section(message: Message) -> str:
    schema = message.get("response_format")
    if not schema:
        return ""
    return "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n" + to_json(schema)


def calls_block(calls: Sequence[Mapping[str, Any]], block: str) -> str:
    """The calls of one assistant message inside `<｜DSML｜block>`; empty without calls."""
    if not calls:
        return ""
    lines = "\n".join(_invoke(call["function"]) for call in calls)
    return f"\n\n<{DSML}{block}>\n{lines}\n</{DSML}{block}>"


def _invoke(function: Mapping[str, Any]) -> str:
    parameters = "\n".join(_parameter(name, value) for name, value in function["arguments"].items())
    return f'<{DSML}invoke name="{function.get("name")}">\n{parameters}\n</{DSML}invoke>'


def _parameter(name: str, value: Any) -> str:
    is_string = isinstance(value, str)
    text = value if is_string else to_json(value)
    return f'<{DSML}parameter name="{name}" string="{"true" if is_string else "false"}">{text}</{DSML}parameter>'


def last_user_index(messages: Sequence[Message]) -> int:
    """Index of the last user or developer message, -1 without one."""
    return max((i for i, message in enumerate(messages) if message.get("role") in ("user", "developer")), default=-1)


def require_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise InvalidRequestError("Cannot apply chat template to an empty conversation. Provide at least one message.")


def unknown_role(role: Any) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid role: {role}")
