"""DeepSeek V4's chat format.

Tool results are blocks inside user messages, in the order of the calls they answer. Thinking is on unless switched
off; earlier reasoning is dropped unless tools are in play. `<｜Assistant｜>` and the think mark follow the last message
of a user's turn, so there is no separate generation prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenwire.errors import InvalidRequestError
from tokenwire.render.chat import ChatInput, EncodedChat
from tokenwire.render.encoders import EncoderOptions
from tokenwire.render.encoders.deepseek_v4_text import EFFORT_PROMPTS, TOOLS
from tokenwire.render.encoders.dsml import (
    ASSISTANT,
    BOS,
    END_THINK,
    EOS,
    THINK,
    USER,
    calls_block,
    last_user_index,
    response_format_section,
    schemas,
    unknown_role,
)
from tokenwire.render.messages import Message, normalize
from tokenwire.render.tokenizer import Tokenizer

IMAGE = "<｜deepseek_image｜>"
REMINDER = "<｜latest_reminder｜>"
TASKS = {name: f"<｜{name}｜>" for name in ("action", "query", "authority", "domain", "title", "read_url")}
EFFORTS = {"max": "max", "low": "low", "minimal": "low", "medium": "low"}
"""Asked-for effort -> the prompt's; anything else is high."""


class DeepseekV4Encoder:
    name = "deepseek_v4"
    can_truncate = True
    has_own_calls = False

    def encode(self, chat: ChatInput) -> EncodedChat:
        conversation = normalize(chat.messages, "openai")
        messages = _ordered_results(_merged([_flat(m) for m in _with_tools(conversation.messages, chat.tools)]))
        thinking, effort = _mode(chat.variables)
        drop = bool(chat.variables.get("drop_thinking", True)) and not any(m.get("tools") for m in messages)
        if thinking and drop:
            messages = _without_old_thinking(messages)
        writer = _Writer(messages, thinking, drop, effort)
        return EncodedChat(BOS + "".join(writer.message(i) for i in range(len(messages))), conversation.media)

    def fingerprint_parts(self) -> list[str]:
        return [self.name, TOOLS, *EFFORT_PROMPTS.values()]


def _mode(variables: Any) -> tuple[bool, str]:
    """Whether to think, and how hard."""
    flags = [variables[name] for name in ("thinking", "enable_thinking") if name in variables]
    thinking = any(flags) if flags else True
    effort = variables.get("reasoning_effort")
    if not isinstance(effort, str):
        return thinking, "high" if thinking else "low"
    if effort == "none":
        return False, "low"
    return thinking, EFFORTS.get(effort, "high")


def _with_tools(messages: Sequence[Message], tools: list[dict[str, Any]] | None) -> list[Message]:
    """The request's tools belong to the first system message, an empty new one if there is none."""
    if not tools:
        return list(messages)
    at = next((i for i, message in enumerate(messages) if message["role"] == "system"), None)
    if at is None:
        return [{"role": "system", "tools": tools}, *messages]
    return [{**message, "tools": tools} if i == at else message for i, message in enumerate(messages)]


def _flat(message: Message) -> Message:
    """Parts as one text, images as placeholders."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if bad := [part["type"] for part in content if part["type"] not in ("text", "image")]:
        raise InvalidRequestError(f"Unsupported content block type: {bad[0]!r}")
    text = "\n\n".join(IMAGE if part["type"] == "image" else part["text"] for part in content)
    return {**message, "content": text}


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring tool results and user texts as the blocks of one user message."""
    out: list[Message] = []
    for message in messages:
        role = message["role"]
        if role not in ("tool", "user"):
            out.append(message)
            continue
        text = message.get("content") or ""
        block = {"text": text if role == "user" else f"<tool_result>{text}</tool_result>"}
        if role == "tool":
            block["call"] = message.get("tool_call_id") or ""
        last = out[-1] if out else None
        if last and "blocks" in last and (role == "tool" or last.get("task") is None):
            last["blocks"].append(block)
        else:
            task = {"task": message["task"]} if role == "user" and "task" in message else {}
            out.append({"role": "user", "blocks": [block], **task})
    return out


def _ordered_results(messages: list[Message]) -> list[Message]:
    """Tool results in the order of the calls, whatever order the client sent them in."""
    order: dict[str, int] = {}
    for message in messages:
        if message["role"] == "assistant" and message.get("tool_calls"):
            order = {call["id"]: i for i, call in enumerate(message["tool_calls"]) if call.get("id")}
        blocks = message.get("blocks", [])
        results = [block for block in blocks if "call" in block]
        if order and len(results) > 1:
            in_order = iter(sorted(results, key=lambda block: order.get(block["call"], 0)))
            message["blocks"] = [next(in_order) if "call" in block else block for block in blocks]
    return messages


def _without_old_thinking(messages: Sequence[Message]) -> list[Message]:
    """Before the last user message: reasoning goes, and so do developer messages."""
    last = last_user_index(messages)
    kept = [(i, m) for i, m in enumerate(messages) if i >= last or m["role"] in _KEPT_ROLES]
    return [m if i >= last else {k: v for k, v in m.items() if k != "reasoning"} for i, m in kept]


_KEPT_ROLES = ("user", "system", "tool", "latest_reminder", "direct_search_results", "assistant")


class _Writer:
    """Writes the messages of one conversation; what one looks like depends on its neighbours."""

    def __init__(self, messages: Sequence[Message], thinking: bool, drop: bool, effort: str) -> None:
        self._messages = messages
        self._thinking = thinking
        self._drop = drop
        self._effort = effort
        self._last_user = last_user_index(messages)

    def message(self, index: int) -> str:
        message = self._messages[index]
        body = _BY_ROLE.get(message["role"])
        if body is None:
            raise unknown_role(message["role"])
        head = EFFORT_PROMPTS[self._effort] if index == 0 and self._thinking else ""
        text: str = body(self, index, message)
        return head + text + self._transition(index, message)

    def system(self, index: int, message: Message) -> str:
        return (message.get("content") or "") + _tools_section(message) + response_format_section(message)

    def developer(self, index: int, message: Message) -> str:
        if not message["content"]:
            raise InvalidRequestError("Invalid message for role `developer`: it is empty.")
        text: str = USER + message["content"]
        return text + _tools_section(message) + response_format_section(message)

    def user(self, index: int, message: Message) -> str:
        return USER + "\n\n".join(block["text"] for block in message["blocks"])

    def latest_reminder(self, index: int, message: Message) -> str:
        return f"{REMINDER}{message['content']}"

    def assistant(self, index: int, message: Message) -> str:
        after_task = index > 0 and self._messages[index - 1].get("task") is not None
        thought = ""
        if self._thinking and not after_task and (not self._drop or index > self._last_user):
            thought = (message.get("reasoning") or "") + END_THINK
        text: str = message["content"] or ""
        return thought + text + calls_block(message.get("tool_calls") or [], "tool_calls") + EOS

    def _transition(self, index: int, message: Message) -> str:
        """What opens the assistant's turn, after the last message of the other side."""
        following = self._messages[index + 1]["role"] if index + 1 < len(self._messages) else None
        if following not in (None, "assistant", "latest_reminder"):
            return ""
        task = message.get("task")
        if task is not None:
            return self._task(task)
        role = message["role"]
        if role in ("user", "developer") or (role == "system" and following in (None, "assistant")):
            opens = self._thinking and (not self._drop or index >= self._last_user)
            return ASSISTANT + (THINK if opens else END_THINK)
        return ""

    def _task(self, task: str) -> str:
        if task not in TASKS:
            raise InvalidRequestError(f"Invalid task: '{task}'. Valid tasks are: {list(TASKS)}")
        opening = ASSISTANT + (THINK if self._thinking else END_THINK) if task == "action" else ""
        return opening + TASKS[task]


_BY_ROLE = {
    "system": _Writer.system,
    "developer": _Writer.developer,
    "user": _Writer.user,
    "latest_reminder": _Writer.latest_reminder,
    "assistant": _Writer.assistant,
}


def _tools_section(message: Message) -> str:
    tools = message.get("tools")
    return f"\n\n{TOOLS % schemas(tools)}" if tools else ""


def make_encoder(tokenizer: Tokenizer, options: EncoderOptions) -> DeepseekV4Encoder:
    return DeepseekV4Encoder()
