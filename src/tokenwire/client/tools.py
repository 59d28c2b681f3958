"""Running a message's tool calls. What the model got wrong is told to the model; what the caller got wrong raises."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tokenwire.wire.generate import ToolCall

Tools = Mapping[str, Callable[..., Any]]
OnError = Literal["raise", "tell"]
"""What an exception of a tool does: reach the caller, or become the result the model sees."""


@dataclass(slots=True, frozen=True)
class ToolResult:
    """One answered call. `failed` if `content` tells of an error instead of a result."""

    call: ToolCall
    content: str
    failed: bool = False

    def as_message(self) -> dict[str, Any]:
        return {
            "role": "tool",
            "tool_call_id": self.call.id,
            "name": self.call.function.name,
            "content": self.content,
        }


def _prepare(call: ToolCall, tools: Tools) -> tuple[Callable[..., Any], dict[str, Any]] | ToolResult:
    """The function and its arguments, or the result that tells the model what is wrong with its call."""
    name = call.function.name
    function = tools.get(name)
    if function is None:
        return ToolResult(call, f"Error: there is no tool {name!r}; the tools are {sorted(tools)}.", failed=True)
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as exc:
        return ToolResult(call, f"Error: the arguments of {name} are not valid JSON: {exc}.", failed=True)
    if not isinstance(arguments, dict):
        return ToolResult(call, f"Error: the arguments of {name} must be a JSON object.", failed=True)
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as exc:
        return ToolResult(call, f"Error: {name}: {exc}.", failed=True)
    except ValueError:
        pass  # a builtin without a signature; the call itself will tell
    return function, arguments


def run_tool(call: ToolCall, tools: Tools, on_error: OnError) -> ToolResult:
    prepared = _prepare(call, tools)
    if isinstance(prepared, ToolResult):
        return prepared
    function, arguments = prepared
    try:
        return ToolResult(call, _as_text(function(**arguments)))
    except Exception as exc:
        return _failure(call, exc, on_error)


async def run_tool_async(call: ToolCall, tools: Tools, on_error: OnError) -> ToolResult:
    """Like `run_tool`; a tool may be a coroutine function."""
    prepared = _prepare(call, tools)
    if isinstance(prepared, ToolResult):
        return prepared
    function, arguments = prepared
    try:
        value = function(**arguments)
        if isinstance(value, Awaitable):
            value = await value
        return ToolResult(call, _as_text(value))
    except Exception as exc:
        return _failure(call, exc, on_error)


def _failure(call: ToolCall, exc: Exception, on_error: OnError) -> ToolResult:
    if on_error == "raise":
        raise exc
    return ToolResult(call, f"Error: {type(exc).__name__}: {exc}", failed=True)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
